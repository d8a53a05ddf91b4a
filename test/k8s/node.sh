#!/bin/sh
# First process of a node, in mount, network and PID namespaces of its own; all that it
# starts ends with it. The environment has NODE (1 or 2), DIR (of the cluster), BIN (of
# hyper), NETWORK (of pods) and GROUP (its cgroup). The test's Go part has written all files.
set -eu
own=$DIR/node$NODE other=$((3 - NODE))

mount --make-rshared /
mount -t tmpfs none /run/netns
mount -t bpf bpf /sys/fs/bpf
mkdir -p /run/containerd /run/scon
mount -t tmpfs none /run/containerd
mount -t tmpfs none /run/scon
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
	kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do # kubelet would set the machine's
	name=$(basename "${setting%=*}")
	echo "${setting#*=}" >"$own/$name"
	mount --bind "$own/$name" "/proc/sys/${setting%=*}"
done
ip link set lo up
until ip link show eth0 >/dev/null 2>&1; do sleep 0.1; done
ip addr add "10.200.0.1$NODE/24" dev eth0
ip link set eth0 up
ip route add default via 10.200.0.1
addr=10.200.0.1$NODE services=10.96.0.0/16
case $NETWORK in
dual)
	ip addr add "fd00:200::1$NODE/64" dev eth0 nodad
	ip route add default via fd00:200::1
	ip route add "10.244.$other.0/24" via "10.200.0.1$other"
	ip route add "fd00:244:$other::/64" via "fd00:200::1$other"
	sysctl -qw net.ipv6.conf.all.forwarding=1
	addr=$addr,fd00:200::1$NODE services=$services,fd00:96::/112
	;;
flannel) # what flannel makes for VXLAN
	ip link add flannel.1 address "0a:00:00:00:00:0$NODE" type vxlan id 1 local "10.200.0.1$NODE" dev eth0 dstport 8472 nolearning
	ip addr add "10.244.$NODE.0/32" dev flannel.1
	ip link set flannel.1 up
	ip neigh add "10.244.$other.0" lladdr "0a:00:00:00:00:0$other" dev flannel.1 nud permanent
	bridge fdb add "0a:00:00:00:00:0$other" dev flannel.1 dst "10.200.0.1$other"
	ip route add "10.244.$other.0/24" via "10.244.$other.0" dev flannel.1 onlink
	nft -f - <<-'RULES'
		table ip flannel {
			chain postrouting {
				type nat hook postrouting priority srcnat;
				ip saddr 10.244.0.0/16 ip daddr != { 10.244.0.0/16, 224.0.0.0/4 } masquerade fully-random
			}
		}
	RULES
	;;
*) ip route add "10.244.$other.0/24" via "10.200.0.1$other" ;;
esac
sysctl -qw net.ipv4.ip_forward=1
for hierarchy in /sys/fs/cgroup/*/; do # version 1
	mkdir -p "$hierarchy$GROUP"
done
if [ -e /sys/fs/cgroup/cpuset/cpuset.cpus ]; then
	for file in cpus mems; do
		cat "/sys/fs/cgroup/cpuset/cpuset.$file" >"/sys/fs/cgroup/cpuset/$GROUP/cpuset.$file"
	done
fi

# keep runs a command again whenever it ends, as systemd does; $own/NAME.pid is its process.
keep() { # NAME COMMAND...
	at=$own/$1
	shift
	while :; do
		"$@" &
		echo $! >"$at.pid"
		wait $! || true
		sleep 1
	done >"$at.log" 2>&1 &
}

kubectl() { "$BIN/hyper" kubectl --kubeconfig "$DIR/admin.kubeconfig" "$@"; }

if [ "$NODE" = 1 ]; then
	keep etcd etcd --data-dir "$own/etcd" --unsafe-no-fsync --log-level warn
	keep apiserver "$BIN/hyper" kube-apiserver --etcd-servers http://127.0.0.1:2379 \
		--service-cluster-ip-range "$services" --advertise-address 10.200.0.11 --allow-privileged \
		--tls-cert-file "$DIR/api.crt" --tls-private-key-file "$DIR/api.key" --client-ca-file "$DIR/ca.crt" \
		--token-auth-file "$DIR/tokens.csv" --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction \
		--service-account-issuer https://kubernetes.default.svc --service-account-key-file "$DIR/sa.key" \
		--service-account-signing-key-file "$DIR/sa.key" --kubelet-preferred-address-types InternalIP \
		--kubelet-client-certificate "$DIR/kubelet.crt" --kubelet-client-key "$DIR/kubelet.key"
	until kubectl get --raw /readyz >/dev/null 2>&1; do sleep 0.3; done
	for name in manager scheduler; do
		case $name in
		manager) set -- kube-controller-manager --service-account-private-key-file "$DIR/sa.key" --root-ca-file "$DIR/ca.crt" --use-service-account-credentials ;;
		scheduler) set -- kube-scheduler ;;
		esac
		keep "$name" "$BIN/hyper" "$@" --leader-elect=false --kubeconfig "$DIR/$name.kubeconfig" \
			--authentication-kubeconfig "$DIR/$name.kubeconfig" --authorization-kubeconfig "$DIR/$name.kubeconfig"
	done
	kubectl create clusterrolebinding kube-proxy --clusterrole system:node-proxier --user system:kube-proxy
fi
mkdir /run/containerd/plugins /run/containerd/lists
ln -s /usr/lib/cni/* /run/containerd/plugins
[ ! -e "$own/10-pods.conflist" ] || cp "$own/10-pods.conflist" /run/containerd/lists
keep containerd containerd --config "$own/containerd.toml"
until ctr -a "$own/containerd.sock" version >/dev/null 2>&1; do sleep 0.2; done
for image in "$DIR"/images/*.tar; do
	ctr -a "$own/containerd.sock" -n k8s.io images import "$image" >>"$own/images.log" 2>&1
done
keep kubelet "$BIN/hyper" kubelet --config "$own/kubelet.yaml" --kubeconfig "$DIR/node$NODE.kubeconfig" \
	--hostname-override "node$NODE" --node-ip "$addr" --root-dir "$own/kubelet" --cert-dir "$own/pki"
until kubectl get node "node$NODE" >/dev/null 2>&1; do sleep 0.5; done
keep proxy "$BIN/hyper" kube-proxy --config "$own/proxy.yaml"
wait
