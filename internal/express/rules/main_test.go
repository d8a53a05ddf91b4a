package rules

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/test/bed/check"
	"github.com/scon-project/scon/test/bed/nstest"
)

func TestMain(m *testing.M) { check.Main(m) }

// read loads rules in a namespace of its own and reads them.
func read(t *testing.T, opts Options, tool, rules string) (r Ruleset) {
	t.Helper()
	ns := nstest.New(t)
	load(t, ns, tool, rules)
	return readIn(t, ns, opts)
}

// readIn reads the rules of a namespace.
func readIn(t *testing.T, ns string, opts Options) (r Ruleset) {
	t.Helper()
	nstest.Do(t, ns, func() {
		var err error
		if r, err = Read(opts); err != nil {
			t.Fatal(err)
		}
	})
	return r
}

// lockIn has iptables use a lock in a directory: it does not wait for tests that run at the
// same time.
func lockIn(dir string) string { return "XTABLES_LOCKFILE=" + filepath.Join(dir, "xtables.lock") }

// load gives rules to a tool that reads them from a file. The test is skipped if
// the kernel does not know what the tool makes of them.
func load(t *testing.T, ns, tool, rules string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	words := append(strings.Fields(tool), file)
	nstest.Do(t, ns, func() {
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Env = append(os.Environ(), lockIn(filepath.Dir(file)))
		out, err := cmd.CombinedOutput()
		switch {
		case err != nil && strings.Contains(string(out), "Operation not supported"),
			err != nil && strings.Contains(string(out), "Protocol error"): // no conntrack of bridges
			t.Skipf("not in this kernel: %s", out)
		case err != nil:
			t.Fatalf("%s: %v: %s", tool, err, out)
		}
	})
}

const (
	nft       = "nft -f"
	xtNFT     = "iptables-nft-restore"
	xtLegacy  = "iptables-legacy-restore"
	container = "172.17.0.2"
	host      = "192.0.2.1" // the uplink's address
	remote    = "198.51.100.7"
)

// outbound is a connection of a container to port remote, masqueraded.
func outbound(proto uint8, port string) Conn {
	return Conn{
		Conn: conntrack.Conn{
			Orig:   tuple(proto, container+":40000", remote+":"+port),
			Reply:  tuple(proto, remote+":"+port, host+":40000"),
			Status: statusSeenReply | statusConfirmed | statusSrcNAT,
		},
		Port: Device{Name: "veth0", Index: 7}, Inside: []Device{{Name: "docker0", Index: 5}}, Outside: []Device{{Name: "eth0", Index: 2}},
	}
}

// published is a connection from outside to the container's port by way of the
// host's, 8080.
func published(proto uint8, port string) Conn {
	c := outbound(proto, port)
	c.Orig = tuple(proto, remote+":50000", host+":8080")
	c.Reply = tuple(proto, container+":"+port, remote+":50000")
	c.Status = statusSeenReply | statusConfirmed | statusDstNAT
	c.Replies = true
	return c
}

// unreplied is a connection without any reply.
func unreplied(c Conn) Conn {
	c.Status &^= statusSeenReply
	return c
}

func tuple(proto uint8, src, dst string) conntrack.Tuple {
	return conntrack.Tuple{Proto: proto, Src: netip.MustParseAddrPort(src), Dst: netip.MustParseAddrPort(dst)}
}

const tcp, udp = unix.IPPROTO_TCP, unix.IPPROTO_UDP

// forwardChain is a table with one chain of nftables.
func forwardChain(rules string) string {
	return "table inet t {\nchain f {\ntype filter hook forward priority 0; policy accept;\n" + rules + "\n}\n}\n"
}

// filterTable is the table of iptables with rules in FORWARD and others.
func filterTable(rules string) string {
	var chains strings.Builder
	for line := range strings.Lines(rules) {
		words := strings.Fields(line)
		if len(words) > 1 && words[0] == "-A" && words[1] != "FORWARD" && !strings.Contains(chains.String(), ":"+words[1]+" ") {
			chains.WriteString(":" + words[1] + " - [0:0]\n")
		}
	}
	return "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n" + chains.String() + rules + "\nCOMMIT\n"
}
