# Ends the shared cluster soon after its last client. A client is a test process; it left a file
# named by its process id, so that it counts until it is gone, however it died.
# $1 file that names the joinable run  $2 folder of this run  $3 data folder  $4 server's pid
# $5 seconds without a client
# Standard input is the run's locked file `alive`: it stays locked while this script lives.

trap '' INT HUP TERM
current=$1 run=$2 data=$3 server=$4 grace=$5

running() {
    [ "$(sed -n 1p "$data/postmaster.pid" 2>/dev/null)" = "$server" ] && kill -0 "$server" 2>/dev/null
}

has_clients() {
    some=1
    for client in "$run"/clients/*; do
        [ -e "$client" ] || continue
        if kill -0 "${client##*/}" 2>/dev/null; then some=0; else rm -f "$client"; fi
    done
    return "$some"
}

idle=0
while running; do
    if has_clients; then
        idle=0
    else
        idle=$((idle + 1))
        if [ "$idle" -ge "$grace" ]; then
            # Closed to newcomers first, then looked once more: a newcomer registers first and
            # then reads the file, so one of us sees the other.
            if [ "$(cat "$current" 2>/dev/null)" = "$run" ]; then rm -f "$current"; fi
            has_clients || break
        fi
    fi
    sleep 1
done

for signal in INT QUIT KILL; do
    running || break
    kill -"$signal" "$server"
    waited=0
    while running && [ "$waited" -lt 10 ]; do
        sleep 1
        waited=$((waited + 1))
    done
done
rm -rf "$run"
