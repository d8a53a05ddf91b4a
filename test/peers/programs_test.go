package peers

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/test/bed/vm"
)

// program is a load generator of others with its server. A case is one way of packets. It
// has passed if the client's exit status is 0 and its output matches good and not bad.
type program struct {
	name    string
	pkg     string   // its Debian package, or its Go module in tools
	needs   []string // programs, or files
	good    string
	bad     string
	prepare string // before the server, once
	// Shell commands, with the server's address $A, its port $P, a directory $D, and the
	// program of tools $T.
	server, client string
}

const neverSaid = `^\b$` // matches nothing

var programs = []program{
	{
		name: "wrk", pkg: "wrk", needs: []string{"wrk", "nginx"}, good: `requests in`, bad: `Socket errors|Non-2xx`,
		prepare: `cat >$D/nginx.conf <<END
user root; daemon off; pid $D/nginx.pid; error_log stderr;
events {}
http { access_log off; server { listen $P; root $D; } }
END
head -c 3000 /dev/urandom >$D/page`,
		server: `exec nginx -p $D -c $D/nginx.conf`, client: `wrk -t 1 -c 16 -d 3s http://$A:$P/page`,
	},
	{
		name: "h2load", pkg: "nghttp2-client", needs: []string{"h2load", "nghttpd"}, good: `50000 succeeded, 0 failed, 0 errored, 0 timeout`, bad: neverSaid,
		prepare: `head -c 3000 /dev/urandom >$D/page`,
		server:  `exec nghttpd --no-tls -d $D $P`, client: `h2load -n 50000 -c 8 -m 4 http://$A:$P/page`,
	},
	{
		name: "redis-benchmark", pkg: "redis-tools", needs: []string{"redis-benchmark", "redis-server"}, good: `"LRANGE_100`, bad: `(?i)error`,
		server: `exec redis-server --port $P --protected-mode no --save "" --dir $D`, client: `redis-benchmark -h $A -p $P -n 5000 -c 16 -t ping,set,get,lrange_100 --csv`,
	},
	{
		name: "pgbench", pkg: "postgresql", needs: []string{"pgbench"}, good: `(?s)actually processed: 800/800.*failed transactions: 0 `, bad: neverSaid,
		prepare: `chown nobody $D; setpriv --reuid=nobody --regid=nogroup --clear-groups $(echo /usr/lib/postgresql/*/bin/initdb) -D $D/pg -A trust -U postgres
echo 'host all all 0.0.0.0/0 trust' >>$D/pg/pg_hba.conf`,
		server: `exec setpriv --reuid=nobody --regid=nogroup --clear-groups $(echo /usr/lib/postgresql/*/bin/postgres) -D $D/pg -h 0.0.0.0 -p $P -k $D`,
		client: `export PGHOST=$A PGPORT=$P PGUSER=postgres; until pgbench -i -q; do sleep 0.2; done; pgbench -c 4 -t 200`,
	},
	{
		name: "iperf3", pkg: "iperf3", needs: []string{"iperf3"}, good: `iperf Done`, bad: `error`,
		server: `exec iperf3 -s -p $P`, client: `iperf3 -c $A -p $P --bidir -t 3 && iperf3 -c $A -p $P --bidir -t 2 -u -b 20M`,
	},
	{
		name: "mosquitto", pkg: "mosquitto-clients", needs: []string{"mosquitto_sub", "mosquitto"}, good: `all 2000`, bad: neverSaid,
		prepare: `printf 'listener %s 0.0.0.0\nallow_anonymous true\nmax_queued_messages 0\nuser root\n' $P >$D/conf`,
		server:  `exec mosquitto -c $D/conf`,
		// mosquitto_pub 2.1 leaves 0.1 s after the end of its input, whatever it has not sent yet.
		client: `sub="mosquitto_sub -h $A -p $P -c -i $$ -q 1 -t t" end=$D/end.$$; mkfifo $end; $sub -E
cat $D/all $end | mosquitto_pub -h $A -p $P -q 1 -t t -l &
$sub -C 2000 | diff - $D/all; : >$end; wait $!; echo all 2000`,
	},
	{name: "fortio", pkg: "fortio.org/fortio", good: `Code 200 : 2000 `, bad: neverSaid, server: `exec $T http serve :$P`, client: `$T http load $A:$P`},
	{name: "quic", pkg: "github.com/quic-go/quic-go", good: `came back`, bad: neverSaid, server: `exec $T quic serve :$P`, client: `$T quic load $A:$P`},
	{name: "webrtc", pkg: "github.com/pion/webrtc/v4", good: `came back`, bad: neverSaid, server: `exec $T webrtc serve :$P`, client: `$T webrtc load $A:$P`},
	{name: "mptcp", pkg: "Linux", needs: []string{"/proc/sys/net/mptcp"}, good: `came back`, bad: neverSaid, server: `exec $T mptcp serve :$P`, client: `$T mptcp load $A:$P`},
}

var programSuites = func() (all []suite) {
	for _, p := range programs {
		all = append(all, suite{name: p.name, prepare: p.find, run: p.run})
	}
	return all
}()

// find returns the program's version.
func (p program) find(t *testing.T) (version string, err error) {
	for _, name := range p.needs {
		if filepath.IsAbs(name) {
			if _, err := os.Stat(name); err != nil {
				return "", &missing{"there is no " + name}
			}
		} else if _, err := exec.LookPath(name); err != nil {
			return "", &missing{name + " is not installed: scripts/install-deps.sh peers"}
		}
	}
	version = "kernel's"
	switch {
	case strings.Contains(p.pkg, "/"):
		cmd := goTool("tools", "list", "-m", "-f", "{{.Version}}", p.pkg)
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("version of %s: %w", p.pkg, err)
		}
		version = strings.TrimSpace(string(out))
	case p.pkg != "Linux":
		out, err := exec.Command("dpkg-query", "--show", "--showformat", "${Version}", p.pkg).Output()
		if err != nil {
			return "", fmt.Errorf("version of %s: %w", p.pkg, err)
		}
		version = string(out)
	}
	_, err = traffic()
	return version, err
}

// traffic returns the path of the program of tools.
var traffic = sync.OnceValues(func() (string, error) {
	text := ""
	for _, name := range []string{"main.go", "go.mod", "go.sum"} {
		part, err := os.ReadFile(filepath.Join("tools", name))
		if err != nil {
			return "", err
		}
		text += string(part)
	}
	dir, err := vm.Cached("peers", fmt.Sprintf("traffic-%08x", crc32.ChecksumIEEE([]byte(text))), func(dir string) error {
		cmd := goTool("tools", "build", "-o", dir+"/", ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		return run(cmd)
	})
	return filepath.Join(dir, "tools"), err
})

// containers makes two containers with Docker's addresses, behind rules such as Docker's;
// the first one publishes port 7000.
const containers = `
sysctl -qw net.ipv4.ip_forward=1
ip link add docker0 type bridge
ip addr add 172.17.0.1/16 dev docker0
ip link set docker0 up
for n in 1 2; do
	ip netns add c$n
	ip link add veth$n type veth peer name eth0 netns c$n
	ip link set veth$n master docker0 up
	ip -n c$n link set lo up
	ip -n c$n addr add 172.17.0.$((n + 1))/16 dev eth0
	ip -n c$n link set eth0 up
	ip -n c$n route add default via 172.17.0.1
done
iptables -t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
iptables -P FORWARD DROP
iptables -A FORWARD -m conntrack --ctstate INVALID -j DROP
iptables -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
iptables -A FORWARD -i docker0 -j ACCEPT
for p in tcp udp; do
	iptables -t nat -A PREROUTING -i uplink -p $p --dport 7000 -j DNAT --to-destination 172.17.0.2:7000
	iptables -A FORWARD -i uplink -d 172.17.0.2 -p $p --dport 7000 -j ACCEPT
done`

// ways are the ways of packets, by the namespaces of client and server.
var ways = []struct{ name, client, server, addr string }{
	{"out of a container", "c1", "edge", "192.0.2.1"},
	{"to a published port", "edge", "c1", "192.0.2.2"},
	{"between containers", "c1", "c2", "172.17.0.3"},
}

func (p program) run(t *testing.T, h *host) results {
	t.Helper()
	h.must(h.command("", "sh", "-euc", containers))
	tool, err := traffic()
	if err != nil {
		t.Fatal(err)
	}
	r := make(results)
	for _, way := range ways {
		env := append(h.env, "A="+way.addr, "P=7000", "T="+tool, "D="+temporary+"/"+way.server)
		in := func(netns, commands string) *exec.Cmd {
			cmd := h.Enter("timeout", []string{"200", "sh", "-euc", commands}, fmt.Sprintf("--net=/proc/%d/root/run/netns/%s", h.PID(), netns))
			cmd.Env = append(cmd.Env, env...)
			return cmd
		}
		h.must(in(way.server, "mkdir $D\nseq 2000 >$D/all\n"+p.prepare))
		var before api.Totals
		if h.with() {
			h.hooked(2)
			before = h.status().Totals
		}
		h.start(way.name+" server", in(way.server, "echo $$ >$D/pid\n"+p.server), func() error {
			out, err := in(way.server, `ss -Hlntu "sport = :$P"`).CombinedOutput()
			if err == nil && len(out) == 0 {
				err = errors.New("nothing listens")
			}
			return err
		})
		out, err := in(way.client, p.client).CombinedOutput()
		h.must(in(way.server, "kill $(cat $D/pid)"))
		h.write(filepath.Join(h.logs, way.name+".log"), string(out))
		r[way.name] = passed
		if err != nil || !regexp.MustCompile(p.good).Match(out) || regexp.MustCompile(p.bad).Match(out) {
			r[way.name] = failed
			t.Logf("%s: %v: %s", way.name, err, out)
		}
		if h.with() {
			after := h.status().Totals
			t.Logf("%s: express packets: %v", way.name, counts{after.ExpressPackets - before.ExpressPackets, after.RegularPackets - before.RegularPackets})
		}
	}
	return r
}
