package discover

import (
	"encoding/binary"
	"os/exec"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/test/bed/nstest"
)

// A queue asks by an option of cake, by keys or actions of filters.
func TestAsks(t *testing.T) {
	u32 := func(typ uint16, n uint32) []byte { return nlmsg.Attr(typ, binary.NativeEndian.AppendUint32(nil, n)) }
	action := func(at uint16, kind string) []byte {
		return nlmsg.Nested(at, nlmsg.Nested(1, nlmsg.Attr(1, []byte(kind+"\x00"))))
	}
	for _, c := range []struct {
		kind    string
		options []byte
		what    string
		all     bool
	}{
		{"route", nil, "the route's realm", true},
		{"flow", u32(1, 1<<0|1<<1), "", false},           // src, dst
		{"flow", u32(1, 1<<9), "conntrack's keys", true}, // nfct-src
		{"flow", u32(1, 1<<13), "key rt-classid", true},  // rt-classid
		{"flow", action(9, "connmark"), "action connmark", false},
		{"matchall", action(2, "ctinfo"), "action ctinfo", false},
		{"flower", action(3, "ct"), "action ct", false},
		{"u32", action(7, "mirred"), "", false},
		{"u32", action(7, "csum"), "", false},
		{"bpf", nil, "", false},
	} {
		if what, all := (tcmsg{kind: c.kind, options: c.options}).asks(); what != c.what || all != c.all {
			t.Errorf("%s with %x: %q, of all %v; want %q, %v", c.kind, c.options, what, all, c.what, c.all)
		}
	}
	for options, want := range map[string]bool{string(u32(11, 1)): true, string(u32(11, 0)): false, string(u32(12, 1)): false, "": false} {
		if got := (tcmsg{kind: "cake", options: []byte(options)}).asksNAT(); got != want {
			t.Errorf("cake with %x: %v", options, got)
		}
	}
}

// What the kernel's qdiscs and filters ask is found at all devices but containers' ports.
func TestReadQuestion(t *testing.T) {
	for _, c := range []struct{ name, commands, want string }{
		{"nothing", "tc qdisc add dev d0 root handle 1: htb\ntc filter add dev d0 parent 1: protocol ip u32 match u32 0 0 action ok", ""},
		{"cake", "tc qdisc add dev d0 root cake nat", "qdisc cake at d0, by nat"},
		{"cake without", "tc qdisc add dev d0 root cake nonat", ""},
		{"cake below", "tc qdisc add dev d0 root handle 1: htb default 1\ntc class add dev d0 parent 1: classid 1:1 htb rate 1gbit\ntc qdisc add dev d0 parent 1:1 cake nat", "qdisc cake at d0, by nat"},
		{"filter", "tc qdisc add dev d0 root handle 1: htb\ntc filter add dev d0 parent 1: protocol ip u32 match u32 0 0 action connmark", "u32 filter at d0, by action connmark"},
		{"filter at the egress", "tc qdisc add dev d0 clsact\ntc filter add dev d0 egress matchall action ctinfo dscp 0xfc000000", "matchall filter at d0, by action ctinfo"},
		{"filter at the ingress", "tc qdisc add dev d0 clsact\ntc filter add dev d0 ingress matchall action connmark", ""},
		{"flow", "tc qdisc add dev d0 root handle 1: htb\ntc filter add dev d0 parent 1: protocol ip handle 1 flow hash keys nfct-src divisor 64", "flow filter at d0, by conntrack's keys"},
		{"a container's port", "ip link add v0 master d0 type veth peer v1 netns $PEER\ntc qdisc add dev v0 root cake nat", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns, peer := nstest.New(t), nstest.New(t)
			nstest.Run(t, ns, "ip link add d0 type bridge\nip link set d0 up")
			nstest.Do(t, ns, func() {
				commands := strings.ReplaceAll(c.commands, "$PEER", peer)
				for line := range strings.Lines(commands) {
					out, err := exec.Command("sh", "-c", line).CombinedOutput()
					switch text := string(out); {
					case err == nil:
					case strings.Contains(text, "is unknown"), strings.Contains(text, "not found"), strings.Contains(text, "Failed to load"):
						t.Skipf("missing in this kernel: %s: %s", line, out)
					default:
						t.Fatalf("%s: %v: %s", line, err, out)
					}
				}
				top, err := Scan(Options{})
				if err != nil || top.Asks.At != c.want {
					t.Errorf("%+v, %v; want %q", top.Asks, err, c.want)
				}
			})
		})
	}
}
