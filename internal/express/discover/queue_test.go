package discover

import (
	"encoding/binary"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/test/bed/nstest"
)

// A queue asks by an option of cake, by keys, matches or actions of filters.
func TestAsks(t *testing.T) {
	u32 := func(typ uint16, n uint32) []byte { return nlmsg.Attr(typ, binary.NativeEndian.AppendUint32(nil, n)) }
	action := func(at uint16, kind string) []byte {
		return nlmsg.Nested(at, nlmsg.Nested(1, nlmsg.Attr(1, []byte(kind+"\x00"))))
	}
	// struct tcf_ematch_hdr, and the two values that an extended match of metadata compares
	ematch := func(at, kind, left, right uint16) []byte {
		b := binary.NativeEndian.AppendUint16(make([]byte, 2), kind)
		b = append(b, make([]byte, 4)...)
		const integer = 1 << 12 // TCF_META_TYPE_INT
		values := binary.NativeEndian.AppendUint16(nil, left|integer)
		values = binary.NativeEndian.AppendUint16(append(values, 0, 0), right|integer)
		match := nlmsg.Attr(1, append(b, nlmsg.Attr(1, append(values, 0, 0))...))
		return nlmsg.Nested(at, nlmsg.Attr(1, make([]byte, 4)), nlmsg.Nested(2, match))
	}
	for _, c := range []struct {
		kind    string
		options []byte
		what    string
		all     bool
	}{
		{"route", nil, "the route's realm", true},
		{"flow", u32(1, 1<<0|1<<1), "", false},             // src, dst
		{"flow", u32(1, 1<<9), "conntrack's keys", true},   // nfct-src
		{"flow", u32(1, 1<<13), "key rt-classid", true},    // rt-classid
		{"flow", u32(1, 1<<14), "the sender's user", true}, // sk-uid
		{"flow", u32(1, 1<<16|1<<17), "", false},           // vlan-tag, rxhash
		{"cgroup", nil, "the sender's cgroup", true},
		{"basic", ematch(2, 4, 14, 0), "ematch meta", true}, // rt_classid
		{"basic", ematch(2, 4, 16, 0), "ematch meta", true}, // sk_family
		{"basic", ematch(2, 4, 0, 45), "ematch meta", true}, // sk_write_pend
		{"basic", ematch(2, 4, 8, 0), "ematch meta", true},  // pkt_type
		{"basic", ematch(2, 4, 12, 0), "", false},           // nf_mark
		{"basic", ematch(2, 4, 46, 47), "", false},          // vlan, rxhash
		{"basic", ematch(2, 8, 16, 0), "", false},           // ipset
		{"basic", ematch(2, 9, 0, 0), "ematch ipt", true},
		{"flow", ematch(11, 4, 16, 0), "ematch meta", true},
		{"flow", action(9, "connmark"), "action connmark", false},
		{"matchall", action(2, "ctinfo"), "action ctinfo", false},
		{"flower", action(3, "ct"), "action ct", false},
		{"flower", nlmsg.Attr(91, []byte{10, 0}), "conntrack's keys", true}, // ct_state
		{"flower", u32(95, 5), "conntrack's keys", true},                    // ct_mark
		{"flower", u32(100, 5), "", false},                                  // hash
		{"flower", nlmsg.Attr(2, []byte("docker0\x00")), "the input device", true},
		{"fw", nlmsg.Attr(3, []byte("docker0\x00")), "the input device", true},
		{"u32", nlmsg.Attr(8, []byte("docker0\x00")), "the input device", true},
		{"u32", action(7, "xt"), "action xt", true},
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

// What the kernel's qdiscs and filters ask is found at all devices, but not cake at containers'
// ports.
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
		{"conntrack's state", "tc qdisc add dev d0 clsact\ntc filter add dev d0 egress protocol ip flower ct_state +trk+est action pass", "flower filter at d0, by conntrack's keys"},
		{"input device", "tc qdisc add dev d0 clsact\ntc filter add dev d0 egress protocol ip flower indev d0 action pass", "flower filter at d0, by the input device"},
		{"input device of u32", "tc qdisc add dev d0 root handle 1: htb\ntc filter add dev d0 parent 1: protocol ip u32 match u32 0 0 indev d0 classid 1:1", "u32 filter at d0, by the input device"},
		{"filters that cannot be listed", "tc qdisc add dev d0 root handle 1: htb\ntc filter add dev d0 parent 1: protocol ip fw", "filters at d0, which the kernel does not list"},
		{"times", "tc qdisc add dev d0 root etf clockid CLOCK_TAI delta 300000", "qdisc etf at d0, by the sender's socket"},
		{"cgroup", "tc qdisc add dev d0 root handle 1: htb\ntc filter add dev d0 parent 1: handle 1: cgroup", "cgroup filter at d0, by the sender's cgroup"},
		{"metadata", "tc qdisc add dev d0 root handle 1: htb\ntc filter add dev d0 parent 1: protocol ip basic match 'meta(sk_family eq 2)' classid 1:1", "basic filter at d0, by ematch meta"},
		{"the route's class", "tc qdisc add dev d0 root handle 1: htb\ntc filter add dev d0 parent 1: protocol ip basic match 'meta(rt_classid eq 2)' classid 1:1", "basic filter at d0, by ematch meta"},
		{"the packet's mark", "tc qdisc add dev d0 root handle 1: htb\ntc filter add dev d0 parent 1: protocol ip basic match 'meta(nf_mark eq 2)' classid 1:1", ""},
		{"filter at a class", "tc qdisc add dev d0 root handle 1: htb\ntc class add dev d0 parent 1: classid 1:1 htb rate 1gbit\ntc class add dev d0 parent 1:1 classid 1:2 htb rate 1gbit\ntc filter add dev d0 parent 1:1 protocol ip u32 match u32 0 0 action connmark", "u32 filter at d0, by action connmark"},
		{"filter at a class of hfsc", "tc qdisc add dev d0 root handle 1: hfsc\ntc class add dev d0 parent 1: classid 1:1 hfsc ls rate 1gbit\ntc class add dev d0 parent 1:1 classid 1:2 hfsc ls rate 1gbit\ntc filter add dev d0 parent 1:1 protocol ip handle 1 flow hash keys nfct-src divisor 64", "flow filter at d0, by conntrack's keys"},
		{"filter at a class below", "tc qdisc add dev d0 root handle 1: prio\ntc qdisc add dev d0 parent 1:1 handle 2: htb\ntc class add dev d0 parent 2: classid 2:1 htb rate 1gbit\ntc filter add dev d0 parent 2:1 protocol ip u32 match u32 0 0 action connmark", "u32 filter at d0, by action connmark"},
		{"filter at a class that asks nothing", "tc qdisc add dev d0 root handle 1: htb\ntc class add dev d0 parent 1: classid 1:1 htb rate 1gbit\ntc filter add dev d0 parent 1:1 protocol ip u32 match u32 0 0 action ok", ""},
		{"filter at a container's port", "ip link add v0 master d0 type veth peer v1 netns $PEER\ntc qdisc add dev v0 clsact\ntc filter add dev v0 egress protocol ip flower ct_state +trk+est action pass", "flower filter at v0, by conntrack's keys"},
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

// Where a qdisc has more classes than are looked at, one of them may have a filter that asks.
func TestManyClasses(t *testing.T) {
	ns := nstest.New(t)
	nstest.Run(t, ns, "ip link add d0 type bridge\nip link set d0 up\ntc qdisc add dev d0 root handle 1: htb")
	scan := func() Question {
		t.Helper()
		var top Topology
		nstest.Do(t, ns, func() {
			var err error
			if top, err = Scan(Options{}); err != nil {
				t.Fatal(err)
			}
		})
		return top.Asks
	}
	add := func(from, to int) {
		t.Helper()
		var batch strings.Builder
		for n := from; n <= to; n++ {
			fmt.Fprintf(&batch, "class add dev d0 parent 1: classid 1:%x htb rate 1mbit\n", n)
		}
		nstest.Do(t, ns, func() {
			cmd := exec.Command("tc", "-batch", "-")
			cmd.Stdin = strings.NewReader(batch.String())
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		})
	}
	add(1, mostClasses)
	if got := scan(); got.At != "" {
		t.Errorf("%d classes: %+v", mostClasses, got)
	}
	add(mostClasses+1, mostClasses+1)
	if got := scan(); !got.All || !strings.Contains(got.At, "more than 1024 classes") {
		t.Errorf("%d classes: %+v", mostClasses+1, got)
	}
}
