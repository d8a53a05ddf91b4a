package faults

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// downCommand is `scon down` for the bed's daemon.
func downCommand(b *scontest.Bed, mode string) *exec.Cmd {
	o := b.Task()
	return exec.Command("nsenter", "--mount="+b.Mounts(), "--net="+b.Node(lab.Device), scon, "down",
		"--state-dir", o.StateDir, "--socket", o.Socket, "--conntrack", mode, "--json")
}

// down runs it and returns what it prints.
func down(b *scontest.Bed, mode string) (d api.Down) {
	b.T.Helper()
	out, err := downCommand(b, mode).Output()
	if err == nil {
		err = json.Unmarshal(out, &d)
	}
	if err != nil {
		b.T.Fatalf("scon down: %v: %s", err, out)
	}
	return d
}

// outcome returns what became of a connection.
func outcome(b *scontest.Bed, d api.Down, c *scontest.Connection) api.Ended {
	b.T.Helper()
	for _, e := range d.Connections {
		if e.Orig.Sport == c.Port() {
			return e
		}
	}
	b.T.Errorf("no connection with port %d in %+v", c.Port(), d)
	return api.Ended{}
}

// entries returns conntrack's entries by the port of the connections' clients.
func entries(b *scontest.Bed) map[uint16]conntrack.Entry {
	b.T.Helper()
	all := make(map[uint16]conntrack.Entry)
	err := b.Do(lab.Device, func() error {
		ct, err := conntrack.Open()
		if err != nil {
			return err
		}
		defer ct.Close()
		return ct.DumpEntries(func(e conntrack.Entry) {
			all[e.Orig.Src.Port()] = e
			all[e.Orig.Dst.Port()] = e // picked up the other way round
		})
	})
	if err != nil {
		b.T.Fatal(err)
	}
	return all
}

// entry returns conntrack's entry of a connection.
func entry(b *scontest.Bed, c *scontest.Connection) conntrack.Entry {
	b.T.Helper()
	e, ok := entries(b)[c.Port()]
	if !ok {
		b.T.Fatalf("no entry of port %d", c.Port())
	}
	return e
}

// dropInvalid drops and counts packets that are INVALID to conntrack.
func dropInvalid(b *scontest.Bed) {
	b.Sh(lab.Device, `
		nft add table inet strict
		nft add chain inet strict c { type filter hook prerouting priority -190 ; }
		nft add rule inet strict c ct state invalid counter drop`)
}

var counted = regexp.MustCompile(`packets (\d+)`)

func invalid(b *scontest.Bed) string {
	b.T.Helper()
	return counted.FindStringSubmatch(b.Sh(lab.Device, "nft list chain inet strict c"))[1]
}

// stray sends segments from outside whose numbers are out of the blue. Of two that are
// half the space apart one is beyond any window.
func stray(b *scontest.Bed, e conntrack.Entry) {
	b.T.Helper()
	src, dst := e.Orig.Src, e.Orig.Dst // as they are outside
	if src.Addr() != lab.EdgeAddr {
		src, dst = e.Reply.Src, e.Reply.Dst
	}
	wire := b.OpenWire(lab.Edge)
	for _, seq := range []uint32{0x12345678, 0x92345678} {
		for _, acked := range []uint32{0x0fedcba9, 0x8fedcba9} {
			wire.Send(segmentAt(deviceMAC(b), wire.Iface.HardwareAddr, src, dst, ack, seq, acked))
		}
	}
}

func deviceMAC(b *scontest.Bed) (mac net.HardwareAddr) {
	b.T.Helper()
	err := b.Do(lab.Device, func() error {
		iface, err := net.InterfaceByName(lab.Uplink)
		if err == nil {
			mac = iface.HardwareAddr
		}
		return err
	})
	if err != nil {
		b.T.Fatal(err)
	}
	return mac
}

// streams opens a connection of each kind, and lets data flow until they are express and
// conntrack's windows are outdated.
func streams(b *scontest.Bed) (all map[string]*scontest.Stream) {
	b.T.Helper()
	conns := map[string]*scontest.Connection{
		"outgoing": b.Outgoing("tcp", 1), "incoming": b.Incoming("tcp", 1), "between containers": between(b),
	}
	if b.Opts.IPv6 {
		conns["outgoing over IPv6"], conns["incoming over IPv6"] = b.Outgoing6("tcp", 1), b.Incoming6("tcp", 1)
	}
	all = make(map[string]*scontest.Stream)
	for kind, c := range conns {
		all[kind] = scontest.StartStream(c.GoExpress())
	}
	for _, s := range all {
		s.Proceed(b.T, 4<<20)
	}
	return all
}

// between connects two containers, without translation.
func between(b *scontest.Bed) *scontest.Connection {
	b.T.Helper()
	return b.Connect("tcp", lab.Container(1), lab.Container(2), netip.AddrPortFrom(lab.ContainerAddr(2), 9000))
}

// With --conntrack restore, connections that went express go on without a lost byte and
// with the same translation, conntrack judges their windows as it does those of
// connections that SCON never saw, and none of their own packets is INVALID.
func TestDownRestore(t *testing.T) {
	t.Parallel()
	b := newExpress(t, scontest.Layout{Containers: 2, IPv6: true})
	all := streams(b)
	silent := b.Outgoing("tcp", 2).GoExpress()
	before := make(map[string]conntrack.Entry)
	for kind, s := range all {
		before[kind] = entry(b, s.C)
		if !before[kind].Liberal() {
			t.Errorf("%s: not liberal: %+v", kind, before[kind])
		}
	}
	dropInvalid(b)
	begun := time.Now()
	d := down(b, "restore")
	t.Logf("scon down took %v", time.Since(begun))
	if len(d.Stopped) != 1 || d.Stopped[0].Name != "express" || d.Conntrack != "restore" {
		t.Errorf("%+v", d)
	}
	if out := b.Sh(lab.Device, "nft list tables"); strings.Contains(out, "scon") {
		t.Errorf("a table is left:\n%s", out)
	}
	for kind, s := range all {
		if o := outcome(b, d, s.C); o.Outcome != "restored" || o.Reason != "" {
			t.Errorf("%s: %+v", kind, o)
		}
		e := entry(b, s.C)
		if e.Liberal() || e.Reply != before[kind].Reply || e.Scales != before[kind].Scales || e.Mark != before[kind].Mark || !e.Assured() {
			t.Errorf("%s: the entry became %+v, was %+v", kind, e, before[kind])
		}
		s.Proceed(t, 4<<20)
	}
	if o := outcome(b, d, silent); o.Outcome != "kept" || !strings.Contains(o.Reason, "no packets") || !entry(b, silent).Liberal() {
		t.Errorf("a silent connection: %+v", o)
	}
	silent.MustPing(3)
	if n := invalid(b); n != "0" {
		t.Errorf("%s packets of the connections are INVALID", n)
	}
	never := b.Incoming("tcp", 2)
	never.MustPing(3)
	for _, c := range []*scontest.Connection{never, all["incoming"].C, all["outgoing"].C} {
		before := invalid(b)
		stray(b, entry(b, c))
		scontest.Eventually(t, "a segment outside the window is INVALID", func() error {
			if n := invalid(b); n == before {
				return errors.New(n)
			}
			return nil
		})
	}
	for _, s := range all {
		s.Proceed(t, 1<<20)
		s.Stop(t)
	}
}

// With --conntrack keep, connections go on and stay liberal.
func TestDownKeep(t *testing.T) {
	t.Parallel()
	b := newExpress(t, scontest.Layout{Containers: 2})
	all := streams(b)
	dropInvalid(b)
	d := down(b, "keep")
	for kind, s := range all {
		if o := outcome(b, d, s.C); o.Outcome != "kept" || o.Reason != "" || !entry(b, s.C).Liberal() {
			t.Errorf("%s: %+v", kind, o)
		}
		stray(b, entry(b, all["incoming"].C))
		s.Proceed(t, 1<<20)
		s.Stop(t)
	}
	if n := invalid(b); n != "0" {
		t.Errorf("%s packets are INVALID", n)
	}
}

// With --conntrack delete, conntrack forgets connections. Those without translation are
// picked up by their next packet and go on.
func TestDownDelete(t *testing.T) {
	t.Parallel()
	b := newExpress(t, scontest.Layout{Containers: 2})
	s := scontest.StartStream(between(b).GoExpress())
	s.Proceed(t, 4<<20)
	translated := b.Incoming("tcp", 1).GoExpress()
	d := down(b, "delete")
	for _, c := range []*scontest.Connection{s.C, translated} {
		if o := outcome(b, d, c); o.Outcome != "deleted" {
			t.Errorf("%+v", o)
		}
	}
	s.Proceed(t, 4<<20)
	if e := entry(b, s.C); e.Scales != [2]uint8{} || !e.Liberal() {
		t.Errorf("the entry is not one that conntrack has picked up: %+v", e)
	}
	s.Stop(t)
	if out := b.Sh(lab.Device, "conntrack -L -p tcp"); strings.Contains(out, fmt.Sprintf("sport=%d ", translated.Port())) {
		t.Errorf("conntrack has not forgotten the translated connection:\n%s", out)
	}
}

// `scon down --conntrack restore` that is killed while it creates entries leaves no table
// and loses no entry: connections are liberal as before, and the next command restores
// them.
func TestDownRestoreKilled(t *testing.T) {
	t.Parallel()
	b := newExpress(t, scontest.Layout{Containers: 2})
	s := scontest.StartStream(b.Incoming("tcp", 1).GoExpress())
	s.Proceed(t, 4<<20)
	many := make([]*scontest.Connection, long(300, 2000))
	for i := range many {
		many[i] = b.Incoming("tcp", 2)
	}
	makeLiberal(b)
	dropInvalid(b)
	b.Daemon.Down()
	hits := 0
	for i := 0; hits < 3; i++ {
		cmd := downCommand(b, "restore") // nsenter becomes scon by exec
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if awaitGuard(b) {
			time.Sleep(time.Duration(hits) * 5 * time.Millisecond)
			hits++
		} else if i == 20 {
			t.Fatal("the command was never seen to create entries")
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		scontest.Eventually(t, "the kernel removes the guard", func() error {
			if guarded(b) {
				return errors.New("it is there")
			}
			return nil
		})
		all := entries(b)
		for _, c := range append(many, s.C) {
			if e, ok := all[c.Port()]; !ok || !e.Liberal() || e.Reply == e.Orig.Reverse() {
				t.Errorf("the killed command has left %+v", e)
			}
		}
		s.Proceed(t, 1<<20)
	}
	for _, c := range many {
		c.MustPing(1)
	}
	if n := invalid(b); n != "0" {
		t.Errorf("%s packets are INVALID", n)
	}
	if o := outcome(b, down(b, "restore"), s.C); o.Outcome != "restored" {
		t.Errorf("the next command: %+v", o)
	}
	s.Proceed(t, 1<<20)
	s.Stop(t)
}

// makeLiberal makes all connections liberal, as if they had gone express.
func makeLiberal(b *scontest.Bed) {
	b.T.Helper()
	all := entries(b)
	err := b.Do(lab.Device, func() error {
		ct, err := conntrack.Open()
		if err != nil {
			return err
		}
		defer ct.Close()
		for _, e := range all {
			if err := ct.UpdateTCP(e.Conn, conntrack.TCPUpdate{}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.T.Fatal(err)
	}
}

// awaitGuard waits for the guard, and reports whether it was seen: it may be there for
// some 10 ms only.
func awaitGuard(b *scontest.Bed) bool {
	b.T.Helper()
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		if guarded(b) {
			return true
		}
	}
	return false
}

// guarded reports whether the table of the guard exists.
func guarded(b *scontest.Bed) (found bool) {
	b.T.Helper()
	err := b.Do(lab.Device, func() error {
		sock, err := nlmsg.OpenRequests(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer sock.Close()
		return sock.Request(nlmsg.Request{
			Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETTABLE, Flags: unix.NLM_F_DUMP,
			Data: []byte{unix.NFPROTO_IPV4, unix.NFNETLINK_V0, 0, 0},
		}, func(m nlmsg.Message) { found = found || bytes.Contains(m.Data, []byte("scon-restore")) })
	})
	if err != nil {
		b.T.Fatal(err)
	}
	return found
}
