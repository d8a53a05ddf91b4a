# The files of the arm64 packages work under systemd: a minimal system without dpkg.
systemctl daemon-reload
systemd-analyze verify scon.service scon-startup.service scon-pipe.service && echo verified
ip link add docker0 type bridge
ip link set docker0 up
systemctl start scon scon-startup || { journalctl --unit scon --unit scon-startup --output cat --no-pager; exit 1; }
scon status --json | sed -n 's/^  "state": "\(.*\)",/state \1/p'
scon version --json | sed -n 's/.*"\(version\|arch\)": "\(.*\)".*/\1 \2/p'
CNI_COMMAND=VERSION scon-cni | grep -c supportedVersions
scon run -- /usr/bin/ip -V | sed 's/,.*//'
systemctl stop scon scon-startup
scon down >/dev/null && echo down
