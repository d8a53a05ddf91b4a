package docker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/netns"
)

// TestDownLeavesNothing compares the machine before `scon up` and after `scon
// down`, with a container under traffic throughout.
func TestDownLeavesNothing(t *testing.T) {
	e := Start(t)
	e.RunEcho(t, "echo")
	settings, attached, files := e.settings(t), e.attached(t), e.files(t)

	s := newSCON(t, e.Machine)
	s.waitHooked(t, "echo")
	stream := startStream(t, e)
	s.expectExpress(t, stream, "tcp")
	if got := e.settings(t); got != settings {
		t.Errorf("SCON changed sysctls or rules:\n%s", difference(settings, got))
	}
	if e.attached(t) == attached {
		t.Errorf("no program is attached:\n%s", attached)
	}

	s.Down(t)
	if got := e.settings(t); got != settings {
		t.Errorf("sysctls or rules differ:\n%s", difference(settings, got))
	}
	if got := e.attached(t); got != attached {
		t.Errorf("programs are left:\n%s", difference(attached, got))
	}
	if got := e.files(t); got != files {
		t.Errorf("pins or sockets are left:\n%s", difference(files, got))
	}
	if out := e.Sh(t, "ps -e -o args= | grep '[s]con daemon' || true"); out != "" {
		t.Errorf("the daemon still runs:\n%s", out)
	}
	stream.proceed(t, "stream after scon down", 32<<20)
	wantUnbroken(t, stream)
}

// settings returns the machine's network sysctls and rules, without counters
// of rules and of conntrack.
func (m *Machine) settings(t *testing.T) string {
	t.Helper()
	return m.Sh(t, `
		sysctl --all --pattern '^net\.' 2>/dev/null | grep -v -e nf_conntrack_count -e '\.neigh\.'
		nft --stateless list ruleset
		iptables-legacy-save | grep -v '^#' || true
		ip -4 rule
		ip -4 route show table all`)
}

// files lists pins and sockets, without the kernel's own files in a new bpffs.
func (m *Machine) files(t *testing.T) string {
	t.Helper()
	return m.Sh(t, "find /sys/fs/bpf; find /run -type s")
}

// attached lists the qdiscs, filters and programs of the machine's devices.
func (m *Machine) attached(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	err := netns.Do(fmt.Sprintf("/proc/%d/ns/net", m.PID()), func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return fmt.Errorf("list devices: %w", err)
		}
		for _, l := range links {
			if err := showAttached(&b, l); err != nil {
				return fmt.Errorf("%s: %w", l.Attrs().Name, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// showAttached writes a device's qdiscs, tc filters, and tcx and XDP programs.
func showAttached(b *strings.Builder, l netlink.Link) error {
	attrs := l.Attrs()
	fmt.Fprintf(b, "%s: %s\n", attrs.Name, l.Type())
	qdiscs, err := netlink.QdiscList(l)
	if err != nil {
		return fmt.Errorf("list qdiscs: %w", err)
	}
	for _, q := range qdiscs {
		fmt.Fprintf(b, "  qdisc %s %s\n", q.Type(), netlink.HandleStr(q.Attrs().Handle))
		for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
			filters, err := netlink.FilterList(l, parent)
			if err != nil {
				return fmt.Errorf("list filters: %w", err)
			}
			for _, f := range filters {
				fmt.Fprintf(b, "  filter %s %v\n", f.Type(), f.Attrs())
			}
		}
	}
	for _, attach := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		result, err := link.QueryPrograms(link.QueryOptions{Target: attrs.Index, Attach: attach})
		if err != nil {
			return fmt.Errorf("list programs of %v: %w", attach, err)
		}
		for _, p := range result.Programs {
			fmt.Fprintf(b, "  %v %d\n", attach, p.ID)
		}
	}
	if attrs.Xdp != nil && attrs.Xdp.Attached {
		fmt.Fprintf(b, "  xdp %d\n", attrs.Xdp.ProgId)
	}
	return nil
}

// difference returns the lines that only one of two texts has.
func difference(before, after string) string {
	var b strings.Builder
	only := func(sign, in, other string) {
		have := map[string]bool{}
		for line := range strings.Lines(other) {
			have[line] = true
		}
		for line := range strings.Lines(in) {
			if !have[line] {
				b.WriteString(sign + line)
			}
		}
	}
	only("-", before, after)
	only("+", after, before)
	return b.String()
}
