# Ends PostgreSQL when its owner is gone, however that died.
# $1 data folder  $2 process id of the server  $3 folder to remove afterwards, or nothing
# Standard input is a pipe that only the owner holds open: its end is the owner's end.

trap '' INT HUP TERM

# The pid file is compared too, so that a recycled process id is never hit.
running() {
    [ "$(sed -n 1p "$1/postmaster.pid" 2>/dev/null)" = "$2" ] && kill -0 "$2" 2>/dev/null
}

word=
read -r word
if [ "$word" = keep ]; then exit 0; fi

for signal in INT QUIT KILL; do
    running "$1" "$2" || break
    kill -"$signal" "$2"
    waited=0
    while running "$1" "$2" && [ "$waited" -lt 10 ]; do
        sleep 1
        waited=$((waited + 1))
    done
done
if [ -n "$3" ]; then rm -rf "$3"; fi
