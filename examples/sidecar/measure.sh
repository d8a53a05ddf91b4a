#!/bin/sh
# Measures a proxy as sidecar: a client in a container of its own fetches 1 GiB from an
# application through nginx, which shares the application's network.
#
#	client ──bridge──▶ nginx, port 8080 ──127.0.0.1 or UNIX socket──▶ application
#
#	measure.sh [ROUNDS [MODE...]]
#
#	tcp    all by TCP
#	unix   TCP to the proxy, a UNIX socket behind it
#	run    as tcp, all three under scon run; the broker has to run (pipe.enabled)
#
# Prints for each mode and round GB/s, and seconds of processor time of the three
# containers and of the broker for 1 GB; then medians. It takes Docker with an image
# nginx that has curl. At the end everything that it makes is removed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
rounds=${1:-5}
[ $# -eq 0 ] || shift
modes=${*:-tcp unix run}
name=scon-sidecar-$$
files=$(mktemp -d)
clean_up() {
	for mode in $modes; do
		docker rm --force $name-client-$mode $name-proxy-$mode $name-app-$mode
	done >/dev/null 2>&1 || :
	rm -r "$files"
}
trap clean_up EXIT
trap 'exit 1' INT TERM
mkdir "$files/www"
truncate --size 1G "$files/www/big"
chmod -R a+rX "$files"

for mode in $modes; do
	mkdir -m 777 "$files/$mode"
	options= proxy=$mode
	if [ $mode = run ]; then
		options="--volume /run/scon/pipe:/run/scon/pipe:ro --volume /usr/lib/scon/libsconrun.so:/libsconrun.so:ro --env LD_PRELOAD=/libsconrun.so"
		proxy=tcp
	fi
	start() { # NAME ARGUMENT...
		container=$1
		shift
		docker run --detach --name $name-$container-$mode --volume "$files/$mode:/sockets" $options "$@" >/dev/null
	}
	start app --volume "$files/www:/www:ro" --volume "$here/app.conf:/etc/nginx/conf.d/default.conf:ro" nginx
	start proxy --network container:$name-app-$mode --volume "$here/$proxy.conf:/etc/nginx/conf.d/default.conf:ro" nginx
	start client nginx sleep 100000
done

# used prints the processor time of a mode's containers and the broker, in seconds.
used() {
	{
		for container in client proxy app; do
			docker exec $name-$container-$1 sh -c '
				if [ -e /sys/fs/cgroup/cpu.stat ]; then
					while read -r key value; do [ $key != usage_usec ] || echo ${value}000; done </sys/fs/cgroup/cpu.stat
				else
					read -r value </sys/fs/cgroup/cpuacct/cpuacct.usage && echo $value
				fi'
		done
		for pid in $(pgrep --full 'scon pipe serve'); do
			awk -v hz="$(getconf CLK_TCK)" '{ printf "%.0f\n", ($14 + $15) * 1e9 / hz }' /proc/$pid/stat
		done
	} | awk '{ sum += $1 } END { printf "%.3f\n", sum / 1e9 }'
}

fetch() { # MODE
	docker exec $name-client-$1 curl --silent --show-error --fail --retry 20 --retry-connrefused --retry-delay 1 --output /dev/null \
		--write-out '%{speed_download}\n' http://"$(docker inspect --format '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' $name-app-$1)":8080/big
}

for mode in $modes; do fetch $mode >/dev/null; done
for round in $(seq "$rounds"); do
	for mode in $modes; do
		before=$(used $mode)
		speed=$(fetch $mode)
		echo $mode "$speed" "$before" "$(used $mode)" | awk '{ printf "%-5s %.2f GB/s %.3f s/GB\n", $1, $2 / 1e9, ($4 - $3) / 1.073741824 }' |
			tee -a "$files/samples"
	done
done

echo
echo "medians of $rounds rounds"
for mode in $modes; do
	for column in 2 4; do
		awk -v mode=$mode -v column=$column '$1 == mode { print $column }' "$files/samples" | sort -n | sed -n "$(((rounds + 1) / 2))p"
	done | { read -r speed && read -r time && printf '%-5s %s GB/s %s s/GB\n' $mode "$speed" "$time"; }
done
