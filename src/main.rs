//! The `oncehook` binary: parse arguments, run the verb, turn the error into an exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    oncehook::cli::main()
}
