# Runs SCON by its command line, with one connection of each kind in a lab: from a
# container, to a container, and between two containers, by TCP and UDP. All six must be
# express in both directions, and conntrack judges those of TCP again afterwards. A flowtable
# takes them away meanwhile: its rule is named, and they come back when it has gone. Prints
# three JSON documents: status, flows and what `scon down` did.
set -e
PATH=/opt:$PATH

echoes() { # NODE PORT
	for proto in TCP4 UDP4; do
		scon lab exec "$1" -- socat $proto-LISTEN:"$2",fork EXEC:cat &
	done
}
awaits() { # NODE PORT
	for proto in tcp udp; do
		until scon lab exec "$1" -- grep -q "$(printf ':%04X ' "$2")" /proc/net/$proto; do
			sleep 0.2
		done
	done
}
asks() { # NODE ADDRESS:PORT
	for proto in TCP4 UDP4; do
		(while echo question; do sleep 0.02; done) | scon lab exec "$1" -- socat - $proto:"$2" >/dev/null &
	done
}
express() { scon flows --json | grep -c '"state": "express"' || true; }

scon lab up --containers 2 >&2
scon up --netns scon-device >&2
echoes edge 7000
echoes c1 80
echoes c2 9000
awaits edge 7000
awaits c1 80
awaits c2 9000
asks c1 10.77.0.2:7000
asks edge 10.77.0.1:8001
asks c1 172.17.0.3:9000

until_is() { # COMMAND WHAT
	tries=0
	while [ "$($1)" != "$2" ] && [ $tries -lt 100 ]; do
		tries=$((tries + 1))
		sleep 0.2
	done
}
taken() { scon explain veth1 | tr -s '\n ' ' ' | grep -o 'was kept regular by ip fast forward handle [0-9]* (flow add)' | tr -d 0-9; }

until_is express 6
scon lab exec device -- nft -f - <<'END'
table ip fast {
	flowtable fast {
		hook ingress priority filter
		devices = { eth0, veth1, veth2 }
	}
	chain forward {
		type filter hook forward priority 10; policy accept;
		meta l4proto { tcp, udp } flow add @fast
	}
}
END
until_is taken 'was kept regular by ip fast forward handle  (flow add)'
taken | grep . >&2
scon lab exec device -- nft delete table ip fast
until_is express 6
sleep 1
scon status --json
scon flows --json

scon down --conntrack restore --json
scon lab exec device -- tc qdisc show >&2
if scon lab exec device -- tc qdisc show | grep clsact >&2 || ls -d /sys/fs/bpf/scon /run/scon >&2; then
	echo "scon down left this" >&2
	exit 1
fi
scon lab down >&2
