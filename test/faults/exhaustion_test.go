package faults

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// A full table keeps its entries, and all other connections stay regular; a
// slot that becomes free is used again.
func TestTableFull(t *testing.T) {
	t.Parallel()
	const most, more = 64, 32
	b := newExpress(t, scontest.Layout{Config: func(c *config.Config) {
		c.Connections, c.PerContainerShare = most, 100
	}})
	p := openPairs(b, 1, most+more)
	for range 50 {
		p.pass(t)
	}
	if n := b.Status().Totals.Entries; n != most {
		t.Errorf("%d Conentries, want %d", n, most)
	}
	x, err := b.Daemon.Explain(lab.Port(1))
	if err != nil || !strings.Contains(fmt.Sprint(x.Findings), "table is full") {
		t.Errorf("explanation: %+v, %v", x.Findings, err)
	}
	b.Sh(lab.Device, "conntrack -D -p udp")
	c := b.Outgoing("tcp", 1).GoExpress()
	p.pass(t)
	c.MustPing(10)
	b.WantNoInvalid()
}

// An overflow of the event ring buffer delays the daemon and has no other effect:
// connections that ended meanwhile lose their Conentries, new ones get theirs.
func TestEventsLost(t *testing.T) {
	t.Parallel()
	const tuples = 20_000 // about 6,500 of them fit
	b := newExpress(t, scontest.Layout{Containers: 2, Config: func(c *config.Config) { c.Admit = 2 }})
	ended := make([]*scontest.Connection, 20)
	for i := range ended {
		ended[i] = b.Outgoing("tcp", 2).GoExpress()
	}
	stays := b.Outgoing("tcp", 2).GoExpress()
	signal(b, syscall.SIGSTOP)
	flood(b, 1, tuples, b.Config.Admit)
	for _, c := range ended {
		c.Close()
	}
	signal(b, syscall.SIGCONT)
	for _, c := range ended {
		c.WaitGone()
	}
	stays.GoExpress()
	b.Outgoing("udp", 2).GoExpress()
	b.WantNoInvalid()
}

// A start that runs out of file descriptors, at any point, fails with an error that
// states the reason, and leaves nothing behind.
func TestOutOfDescriptors(t *testing.T) {
	t.Parallel()
	runtime := 8 + inherited(t) // with fewer, Go's runtime gives up before main
	b := newBed(t, scontest.Layout{})
	c := b.Outgoing("tcp", 1)
	var refused, explained int
	for limit, started := runtime, false; !started; limit += long(4, 1) {
		task := b.Task()
		task.SCON = limited(b, fmt.Sprintf("exec prlimit --nofile=%d", limit))
		p := b.Launch(task)
		if started = p.Starts(); started {
			p.Down()
		} else {
			word := p.Refused()
			if !strings.Contains(word, "scon: ") {
				t.Errorf("with %d descriptors the error is %q", limit, word)
			}
			if strings.Contains(word, "too many open files") {
				explained++
			}
			refused++
		}
		wantNothingLeft(b)
		c.MustPing(1)
	}
	// The BPF library may report a failed probe as a missing kernel feature.
	if refused < 5 || explained < refused-1 {
		t.Errorf("%d starts failed, %d of them with the reason", refused, explained)
	}
}

// inherited counts the files besides the standard ones that this process leaves to those that
// it starts.
func inherited(t *testing.T) (n int) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		fd, err := strconv.Atoi(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && fd > 2 && flags&unix.FD_CLOEXEC == 0 {
			n++
		}
	}
	return n
}

// The daemon refuses a table that does not fit into memory, and leaves nothing behind.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	b := newBed(t, scontest.Layout{Config: func(c *config.Config) { c.Connections = 1 << 20 }})
	group := memoryGroup(t, 32<<20)
	c := b.Outgoing("tcp", 1)
	task := b.Task()
	task.SCON = limited(b, fmt.Sprintf("echo $$ > %s/cgroup.procs && exec", group))
	if word := b.Launch(task).Refused(); !strings.Contains(word, "make 'connections' smaller") {
		t.Errorf("the error is %q", word)
	}
	wantNothingLeft(b)
	c.MustPing(5)
}

// A table that a control group has no room for does not grow: the daemon lives, and says
// why. It grows when there is room.
func TestNoMemoryToGrow(t *testing.T) {
	t.Parallel()
	b := newBed(t, scontest.Layout{Config: func(c *config.Config) { c.Connections, c.PerContainerShare, c.Admit = 1<<16, 100, 2 }})
	group := memoryGroup(t, 256<<20)
	task := b.Task()
	task.SCON = limited(b, fmt.Sprintf("echo $$ > %s/cgroup.procs && exec", group))
	b.Daemon = b.Launch(task)
	b.Daemon.WaitReady()
	c := b.Outgoing("tcp", 1).GoExpress()
	limit(t, group, 4<<20+used(t, group))
	w, mac := b.OpenWire(lab.Container(1)), b.BridgeMAC()
	scontest.Eventually(t, "the table cannot grow", func() error {
		// More than half a page, again and again: the daemon may be too busy for some.
		for i := range 1500 {
			f := scontest.Frame(mac, w.Iface.HardwareAddr, netip.AddrPortFrom(lab.ContainerAddr(1), uint16(10000+i)), netip.AddrPortFrom(lab.EdgeAddr, 9), "x")
			for range 3 {
				w.Send(f)
			}
		}
		if why := b.Status().Table.Why; !strings.Contains(why, "control group") {
			return fmt.Errorf("%d entries, why: %q", b.Status().Totals.Entries, why)
		}
		return nil
	})
	c.MustPing(5)
	limit(t, group, 256<<20)
	scontest.Eventually(t, "the table grows", func() error {
		if s := b.Status(); s.Table.Why != "" {
			return errors.New(s.Table.Why)
		}
		return nil
	})
	c.MustPing(5)
}

// limit sets the memory limit of a cgroup.
func limit(t *testing.T, group string, bytes int) {
	t.Helper()
	file := filepath.Join(group, "memory.max")
	if _, err := os.Stat(file); err != nil {
		file = filepath.Join(group, "memory.limit_in_bytes")
	}
	if err := os.WriteFile(file, []byte(fmt.Sprint(bytes)), 0); err != nil {
		t.Fatal(err)
	}
}

// used reads how much memory a cgroup uses.
func used(t *testing.T, group string) (bytes int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(group, "memory.current"))
	if err != nil {
		text, err = os.ReadFile(filepath.Join(group, "memory.usage_in_bytes"))
	}
	if err == nil {
		_, err = fmt.Sscan(string(text), &bytes)
	}
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

// limited writes a script that runs scon under a limit: by is the prefix of its command
// line.
func limited(b *scontest.Bed, by string) string {
	b.T.Helper()
	file := filepath.Join(b.Dir, "limited")
	if err := os.WriteFile(file, fmt.Appendf(nil, "#!/bin/sh\n%s %s \"$@\"\n", by, scon), 0o755); err != nil {
		b.T.Fatal(err)
	}
	return file
}

// memoryGroup creates a cgroup with a memory limit below the test's own.
func memoryGroup(t *testing.T, limit int) string {
	t.Helper()
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(groups)) {
		w := strings.SplitN(strings.TrimSpace(line), ":", 3)
		root, file := "/sys/fs/cgroup", "memory.max"
		if w[1] == "memory" {
			root, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		} else if w[1] != "" {
			continue
		}
		group := filepath.Join(root, w[2], fmt.Sprintf("scon-f%d-%s", os.Getpid(), t.Name()))
		if err := os.Mkdir(group, 0o755); err != nil {
			continue
		}
		t.Cleanup(func() {
			if err := os.Remove(group); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
		})
		if os.WriteFile(filepath.Join(group, file), []byte(fmt.Sprint(limit)), 0) == nil {
			return group
		}
	}
	t.Skip("no memory cgroup can be created below the test's own")
	return ""
}
