# Installs, upgrades and removes the .rpm packages, with their scripts, by rpm in a Debian
# system: its database lacks what they depend on.
set -e
trace() { find / -xdev \( -path /proc -o -path /old -o -path /new -o -path /var/lib/rpm \) -prune -o -name '*scon*' -print | sort; }
trace >/tmp/before
quiet() { "$@" 2>&1 | grep -v -e '^rpm: ' -e ' saved as ' -e '/sys/fs/bpf' || true; }

quiet rpm --install --nodeps /old/*.rpm
rpm --verify --nodeps scon scon-startup scon-pipe libsconpipe0 && echo 'installed: whole'
sed -i 's/^connections: .*/connections: 1024/' /etc/scon/scon.yaml
quiet rpm --upgrade --nodeps /new/*.rpm
grep -q '^connections: 1024' /etc/scon/scon.yaml && echo "upgraded: $(scon version | cut -d' ' -f1,2), settings kept"
rpm --query scon scon-startup scon-pipe libsconpipe0
scon run -- /bin/true && CNI_COMMAND=VERSION scon-cni >/dev/null && echo 'programs run'
quiet rpm --erase --nodeps scon-startup scon-pipe libsconpipe0 scon
trace | diff /tmp/before - || true
