use super::{errors, with};

/// Lines of a source, a handler, and what the error must say.
const MISTAKES: [(&str, &str, &[&str]); 51] = [
    (
        "secrets = []",
        "",
        &["source \"main\"", "`secrets` is missing"],
    ),
    (
        "secrets = [{ label = \"x\", value = \"env:EMPTY\" }]",
        "",
        &["source \"main\", secret \"x\"", "empty"],
    ),
    (
        "secrets = [{ label = \"x\", value = \"   \" }]",
        "",
        &["secret \"x\"", "blank"],
    ),
    (
        "secrets = [{ label = \"x\", value = \"env:SHORT\" }]",
        "",
        &["secret \"x\"", "cannot be used"],
    ),
    (
        "secrets = [{ label = \"x\", value = \"v1,MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\" }]",
        "",
        &["secret \"x\"", "signature"],
    ),
    (
        "secrets = [{ value = \"env:SHORT\" }]",
        "",
        &["source \"main\"", "`label` is missing"],
    ),
    (
        "secrets = [\"env:SHORT\"]",
        "",
        &["source \"main\"", "a list of tables, not a text"],
    ),
    (
        "tolerance = 300",
        "",
        &[
            "line 7",
            "`tolerance` must be a text in quotes, not a whole number",
        ],
    ),
    ("tolerance = \"0s\"", "", &["longer than zero"]),
    (
        "hmac = { header = \"X\" }",
        "",
        &["belongs to provider = \"hmac\""],
    ),
    ("was = \"main\"", "", &["`was`"]),
    (
        "public_url = \"shop.example.com\"",
        "",
        &["`public_url` is not a URL"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\nevents = [\"*:*\"]",
        &["handler \"h\"", "`call` is missing"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f(); drop\"\nevents = [\"*:*\"]",
        &["schema.function"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f\"\nevents = []",
        &["never run"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f\"\nevents = [\"*:*\"]\nurl = \"http://x\"",
        &["belongs to kind = \"http\""],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"nats\"\nevents = [\"*:*\"]",
        &["`kind` is \"nats\""],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"http\"\nurl = \"http://x\"\nsecrets = [{ label = \"a\", value = \"env:FULFILMENT_SECRET\" }]\nevents = [\"*:*\"]",
        &["`on_unknown` is missing", "Idempotency-Key"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"http\"\nurl = \"http://x\"\nsecrets = [{ label = \"a\", value = \"env:FULFILMENT_SECRET\" }]\nevents = [\"*:*\"]\non_unknown = \"probe\"",
        &["on_unknown = \"probe\" needs to know whom to ask"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"http\"\nurl = \"http://x\"\nsecrets = [{ label = \"a\", value = \"env:FULFILMENT_SECRET\" }]\nevents = [\"*:*\"]\non_unknown = \"perhaps\"",
        &["must be \"retry\" or \"probe\" or \"hold\""],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"http\"\nurl = \"http://x\"\nsecrets = [{ label = \"a\", value = \"env:FULFILMENT_SECRET\" }]\nevents = [\"*:*\"]\non_unknown = \"hold\"\nprobe = { url = \"http://x/{effect_key}\" }",
        &["belongs to on_unknown = \"probe\""],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"http\"\nurl = \"http://x\"\nsecrets = [{ label = \"a\", value = \"env:FULFILMENT_SECRET\" }]\nevents = [\"*:*\"]\non_unknown = \"probe\"\nprobe = { url = \"http://x/{key}\" }",
        &["knows {effect_key} only"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"http\"\nurl = \"http://x\"\nsecrets = [{ label = \"a\", value = \"env:FULFILMENT_SECRET\" }]\nevents = [\"*:*\"]\non_unknown = \"probe\"\nprobe = { method = \"GET\" }",
        &["`url` is missing", "{effect_key}"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"http\"\nurl = \"http://x\"\nsecrets = [{ label = \"a\", value = \"env:FULFILMENT_SECRET\" }]\nevents = [\"*:*\"]\non_unknown = \"probe\"\nprobe = { url = \"http://x\", after = [\"5s\", \"5s\"] }",
        &["each longer than the one before"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"http\"\nurl = \"http://x\"\nsecrets = [{ label = \"a\", value = \"env:FULFILMENT_SECRET\" }]\nevents = [\"*:*\"]\non_unknown = \"probe\"\nprobe = { url = \"http://x\", not_found = \"applied\" }",
        &["`not_found` is \"applied\""],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"http\"\nurl = \"http://u:p@x\"\nsecrets = [{ label = \"a\", value = \"env:FULFILMENT_SECRET\" }]\nevents = [\"*:*\"]\non_unknown = \"retry\"",
        &["user name or password"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"http\"\nurl = \"http://x\"\nsecrets = [{ label = \"a\", value = \"env:FULFILMENT_SECRET\" }]\nevents = [\"*:*\"]\non_unknown = \"retry\"\ntimeout = \"30s\"\nlease = \"30s\"",
        &["must outlast `timeout`"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f\"\nevents = [\"*:*\"]\n[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f\"\nevents = [\"*:*\"]",
        &["names are unique"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f\"\nevents = [\"*:*\"]\ntimeout = \"25h\"",
        &["`timeout` must not be longer than 1d"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f\"\nevents = [\"*:*\"]\nbreaker = false",
        &["`breaker` belongs to kind = \"http\"", "handlers pause"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f\"\nevents = [\"*:*\"]\nretry = { share = 20 }",
        &["`share` belongs to kind = \"http\""],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f\"\nevents = [\"*:*\"]\nrate = \"100/m\"",
        &["`rate`", "\"100/s\", \"600/min\""],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f\"\nevents = [\"*:*\"]\nmax_in_flight = 0",
        &["`max_in_flight` must be a whole number from 1"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f\"\nevents = [\"*:*\"]\npriority = \"urgent\"",
        &[
            "`priority` is \"urgent\"",
            "\"high\" or \"normal\" or \"low\"",
        ],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f\"\nevents = [\"*:*\"]\npriority = { high = [\"dispute\"] }",
        &[
            "handler \"h\", priority",
            "\"dispute\" is not an event pattern",
        ],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f\"\nevents = [\"*:*\"]\npriority = {}",
        &["`priority` names nothing"],
    ),
    (
        "[[source]]\nname = \"s\"\nprovider = \"stripe\"\nsecrets = [{ label = \"a\", value = \"file:/dev/zero\" }]",
        "",
        &["cannot read /dev/zero", "64KiB"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"http\"\nurl = \"http://x\"\nsecrets = [{ label = \"a\", value = \"env:FULFILMENT_SECRET\" }]\nevents = [\"*:*\"]\non_unknown = \"hold\"\nlane_on_uncertain = \"skip\"",
        &["says what a lane does, and this handler has none"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"http\"\nurl = \"http://x\"\nsecrets = [{ label = \"a\", value = \"env:FULFILMENT_SECRET\" }]\nevents = [\"*:*\"]\non_unknown = \"retry\"\nlane = \"entity\"\nlane_on_uncertain = \"wait\"",
        &["belongs to on_unknown = \"probe\" or \"hold\""],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"http\"\nurl = \"http://x\"\nsecrets = [{ label = \"a\", value = \"env:FULFILMENT_SECRET\" }]\nevents = [\"*:*\"]\non_unknown = \"hold\"\nlane = \"entity\"\napply_if_newer = \"occurred_at\"\nlane_on_uncertain = \"skip\"",
        &["leave one of them out"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"http\"\nurl = \"http://x\"\nsecrets = [{ label = \"a\", value = \"env:FULFILMENT_SECRET\" }]\nevents = [\"*:*\"]\non_unknown = \"hold\"\nlane = \"entity\"\nlane_on_dead = \"hold\"\nlane_on_uncertain = \"skip\"",
        &["says that none runs whose predecessor did not"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f\"\nevents = [\"*:*\"]\nlane = \"entity\"\nlane_on_uncertain = \"wait\"",
        &["so its result is never unknown"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f\"\nevents = [\"*:*\"]\ndatabase = \"mysql://u:hunter2@h/d\"",
        &["handler \"h\"", "handler.database"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f\"\nevents = [\"*:*\"]\ndatabase = \"env:EMPTY\"",
        &["`database`", "empty"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f\"\nevents = [\"*:*\"]\ndatabase = \"postgresql://u:hunter2@h/d\"\nbatch = 5",
        &["`batch`", "each event is a transaction"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f\"\nevents = [\"*:*\"]\ndatabase = \"postgresql://u:hunter2@h/d\"\non_unknown = \"retry\"",
        &["`on_unknown`", "in the ledger of its `database`"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f\"\nevents = [\"*:*\"]\ndatabase = \"postgresql://u:hunter2@h/d\"\napply_if_newer = \"occurred_at\"",
        &["needs lane = \"entity\""],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f\"\nevents = [\"*:*\"]\ndatabase = \"postgresql://u:hunter2@h/d\"\nlane = \"entity\"\nlane_on_uncertain = \"wait\"",
        &["never unknown"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f\"\nevents = [\"*:*\"]\ndatabase = \"postgresql://u:hunter2@h/d\"\nlease = \"11s\"",
        &["`lease` (11s) must outlast `timeout` (10s)"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"sql\"\ncall = \"app.f\"\nevents = [\"*:*\"]\nconcurrency = 5",
        &["`concurrency`", "with a `database` of its own"],
    ),
    (
        "",
        "[[handler]]\nname = \"h\"\nkind = \"http\"\nevents = [\"*:*\"]\ndatabase = \"postgresql://u:hunter2@h/d\"\n",
        &["`database`", "belongs to kind = \"sql\""],
    ),
];

#[test]
fn single_mistakes_name_place_and_remedy() {
    for (source, handler, expected) in MISTAKES {
        let text = errors(&with(source, handler));
        for part in expected {
            assert!(
                text.contains(part),
                "{source}{handler}\n-> {text}\nlacks {part}"
            );
        }
    }
}
