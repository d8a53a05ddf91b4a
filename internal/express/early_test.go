package express_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// families are the directions of scontest.Directions, over IPv4 and IPv6.
var families = map[string]func(b *scontest.Bed, proto string, n int) *scontest.Connection{
	"outgoing": (*scontest.Bed).Outgoing, "outgoing, IPv6": (*scontest.Bed).Outgoing6,
	"incoming": (*scontest.Bed).Incoming, "incoming, IPv6": (*scontest.Bed).Incoming6,
}

// newLiberal builds a lab in which conntrack accepts TCP whatever its sequence numbers, and
// waits until programs compose connections.
func newLiberal(t *testing.T, l scontest.Layout) *scontest.Bed {
	t.Helper()
	l.IPv6 = true
	b := scontest.NewExpress(t, l)
	setLiberal(b, 1)
	scontest.Eventually(t, "short connections go express", func() error {
		c := b.Outgoing("tcp", 1)
		c.MustPing(1)
		finish(c)
		return wantExpress(b, 3)
	})
	return b
}

func setLiberal(b *scontest.Bed, value int) {
	b.Sh(lab.Device, fmt.Sprintf("sysctl -qw net.netfilter.nf_conntrack_tcp_be_liberal=%d", value))
}

// wantLiberal fails unless conntrack's setting has a value.
func wantLiberal(b *scontest.Bed, value string) {
	b.T.Helper()
	scontest.Eventually(b.T, "nf_conntrack_tcp_be_liberal is "+value, func() error {
		if is := strings.TrimSpace(b.Sh(lab.Device, "sysctl -n net.netfilter.nf_conntrack_tcp_be_liberal")); is != value {
			return fmt.Errorf("it is %s", is)
		}
		return nil
	})
}

// wantExpress waits until packets are counted, and fails unless so many went express.
func wantExpress(b *scontest.Bed, packets uint64) error {
	time.Sleep(400 * time.Millisecond) // two heartbeats
	if n := b.Status().Totals.ExpressPackets; n < packets {
		return fmt.Errorf("%d packets went express, not %d", n, packets)
	}
	return nil
}

// finish ends a connection as a client does that was answered.
func finish(c *scontest.Connection) {
	c.B.T.Helper()
	for _, e := range c.Ends() {
		if err := scontest.CloseWrite(e[0]); err != nil {
			c.B.T.Fatal(err)
		}
		scontest.WantEnd(c.B.T, e[1], io.EOF)
	}
	c.Close()
}

// A connection of one request goes express from its fifth packet on, its end included, and
// conntrack has the end soon after.
func TestShort(t *testing.T) {
	t.Parallel()
	b := newLiberal(t, scontest.Layout{})
	for name, connect := range families {
		t.Run(name, func(t *testing.T) {
			b := b.In(t)
			short := func(n int) (all []*scontest.Connection) {
				for range n {
					c := connect(b, "tcp", 1)
					c.MustPing(1)
					finish(c)
					all = append(all, c)
				}
				return all
			}
			short(50) // until slots enough are set aside
			time.Sleep(400 * time.Millisecond)
			before := b.Status().Totals.ExpressPackets
			all := short(20)
			for _, c := range all {
				wantState(c, stateTimeWait, stateTimeWait)
			}
			if err := wantExpress(b, before+20*7); err != nil {
				t.Error(err)
			}
			b.WantNoInvalid()
		})
	}
}

// A connection that lasts becomes a Conentry like others, without a packet that notices.
func TestShortLasts(t *testing.T) {
	t.Parallel()
	b := newLiberal(t, scontest.Layout{})
	for name, connect := range families {
		t.Run(name, func(t *testing.T) {
			b := b.In(t)
			c := connect(b, "tcp", 1)
			c.MustPing(2)
			scontest.Eventually(t, "the connection has a Conentry", func() error {
				_, err := c.Flow()
				return err
			})
			c.Exchange(1 << 20)
			setLiberal(b, 0)
			time.Sleep(time.Second)
			c.Exchange(1 << 20)
			finish(c)
			wantState(c, stateTimeWait, stateTimeWait)
			b.WantNoInvalid()
			setLiberal(b, 1)
		})
	}
}

// One end has sent its last data, express; the other one goes on for long.
func TestShortHalfClosed(t *testing.T) {
	t.Parallel()
	b := newLiberal(t, scontest.Layout{})
	for name, connect := range families {
		t.Run(name, func(t *testing.T) {
			c := connect(b.In(t), "tcp", 1)
			c.MustPing(2)
			if err := scontest.CloseWrite(c.Client); err != nil {
				t.Fatal(err)
			}
			scontest.WantEnd(t, c.Server, io.EOF)
			wantState(c, conntrack.TCPCloseWait, conntrack.TCPCloseWait)
			if _, err := scontest.TransferStream(c.Server, c.Client, 4<<20, 1); err != nil {
				t.Fatal(err)
			}
			if err := scontest.CloseWrite(c.Server); err != nil {
				t.Fatal(err)
			}
			scontest.WantEnd(t, c.Client, io.EOF)
			wantState(c, stateTimeWait, stateTimeWait)
		})
	}
	b.WantNoInvalid()
}

// A reset ends a connection as without SCON.
func TestShortReset(t *testing.T) {
	t.Parallel()
	b := newLiberal(t, scontest.Layout{})
	for name, connect := range families {
		for pings := range 3 {
			t.Run(fmt.Sprintf("%s, after %d requests", name, pings), func(t *testing.T) {
				c := connect(b.In(t), "tcp", 1)
				c.MustPing(pings)
				if err := scontest.Reset(c.Client); err != nil {
					t.Fatal(err)
				}
				scontest.WantEnd(t, c.Server, syscall.ECONNRESET)
				wantState(c, conntrack.TCPClosed, conntrack.TCPClosed)
			})
		}
	}
	b.WantNoInvalid()
}

// Of connections that come faster than slots are set aside, some stay regular, and conntrack
// hears of the end of each.
func TestShortMany(t *testing.T) {
	t.Parallel()
	b := newLiberal(t, scontest.Layout{Config: func(c *config.Config) { c.Connections = 1 << 14 }})
	var l net.Listener
	if err := b.Do(lab.Edge, func() (err error) { l, err = net.Listen("tcp4", ":7000"); return err }); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go answerOnce(c)
		}
	}()
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			err := b.Do(lab.Container(1), func() (err error) {
				for range 1000 {
					err = errors.Join(err, askOnce(lab.EdgeAddr.String()+":7000"))
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	clients.Wait()
	scontest.Eventually(t, "conntrack has the end of all connections", func() error {
		if n := strings.Count(b.Sh(lab.Device, "conntrack -L -p tcp --state ESTABLISHED"), "ESTABLISHED"); n > 0 {
			return fmt.Errorf("it takes %d for established", n)
		}
		return nil
	})
	b.WantNoInvalid()
}

// newShared builds a lab like newLiberal, with two containers, of which each may have so many
// Conentries, and a server at port 7001 of edge.
func newShared(t *testing.T, share int) *scontest.Bed {
	t.Helper()
	b := newLiberal(t, scontest.Layout{Containers: 2, Config: func(c *config.Config) {
		c.Connections, c.PerContainerShare = 4*share, 25
	}})
	var l net.Listener
	if err := b.Do(lab.Edge, func() (err error) { l, err = net.Listen("tcp4", ":7001"); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return b
}

// A container that opens connections as fast as it can, and holds them, takes no more than its
// share, and nothing of what another one's short connections need.
func TestShortFlood(t *testing.T) {
	t.Parallel()
	const share = 256
	b := newShared(t, share)
	err := b.Do(lab.Container(1), func() error {
		for range 3 * share {
			c, err := net.DialTimeout("tcp4", lab.EdgeAddr.String()+":7001", scontest.Patience)
			if err != nil {
				return err
			}
			t.Cleanup(func() { c.Close() })
			if _, err := c.Write([]byte("hold")); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	wantShortOf(b, 2)
	if c, ok := b.Container(1); !ok || c.Entries > share {
		t.Errorf("the container has %d Conentries, of a share of %d", c.Entries, share)
	}
	b.WantNoInvalid()
}

// wantShortOf has a container make short connections, and fails unless they go express.
func wantShortOf(b *scontest.Bed, n int) {
	b.T.Helper()
	before, _ := b.Container(n)
	for range 2 {
		for range 30 {
			c := b.Outgoing("tcp", n)
			c.MustPing(1)
			finish(c)
		}
		time.Sleep(400 * time.Millisecond)
	}
	if c, ok := b.Container(n); !ok || c.ExpressPackets < before.ExpressPackets+30*6 {
		b.T.Errorf("%d packets of short connections of container %d went express", c.ExpressPackets-before.ExpressPackets, n)
	}
}

// A container that begins connections and never goes on, answered or not, takes nothing of what
// another one's short connections need, and gets its own slots back.
func TestShortHalfOpen(t *testing.T) {
	t.Parallel()
	const share = 256
	b := newShared(t, share)
	b.Sh(lab.Edge, `sysctl -qw net.ipv4.tcp_max_syn_backlog=65536 net.ipv4.tcp_syncookies=2
		nft add table ip closed
		nft add chain ip closed input { type filter hook input priority 0; }
		nft add rule ip closed input tcp dport 7002 drop`)
	b.Sh(lab.Container(1), `nft add table ip silent
		nft add chain ip silent output { type filter hook output priority 0; }
		nft add rule ip silent output tcp flags & rst == rst drop`)
	err := b.Do(lab.Container(1), func() error {
		for port := range uint16(4 * share) {
			from := netip.AddrPortFrom(lab.ContainerAddr(1), 20000+port)
			for _, to := range [...]uint16{7001, 7002} {
				if err := sendSYN(from, netip.AddrPortFrom(lab.EdgeAddr, to)); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	wantShortOf(b, 2)
	if c, ok := b.Container(1); !ok || c.Entries > share {
		t.Errorf("the container has %d Conentries, of a share of %d", c.Entries, share)
	}
	time.Sleep(1500 * time.Millisecond) // the age of connections that last
	wantShortOf(b, 1)
	b.WantNoInvalid()
}

// sendSYN sends the first packet of a connection of TCP, and no other one.
func sendSYN(from, to netip.AddrPort) error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, syscall.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	src, dst := from.Addr().As4(), to.Addr().As4()
	p := make([]byte, 40)
	p[0], p[8], p[9] = 0x45, 64, syscall.IPPROTO_TCP
	copy(p[12:], src[:])
	copy(p[16:], dst[:])
	tcp := p[20:]
	binary.BigEndian.PutUint16(tcp, from.Port())
	binary.BigEndian.PutUint16(tcp[2:], to.Port())
	tcp[12], tcp[13] = 5<<4, 0x02              // five words, SYN
	binary.BigEndian.PutUint16(tcp[14:], 8192) // window
	sum := uint32(syscall.IPPROTO_TCP + len(tcp))
	for i := 12; i < len(p); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(tcp[16:], ^uint16(sum>>16+sum))
	return syscall.Sendto(fd, p, 0, &syscall.SockaddrInet4{Addr: dst})
}

// answerOnce answers one request, and closes the connection after its client has.
func answerOnce(c net.Conn) {
	defer c.Close()
	var request [64]byte
	if n, err := c.Read(request[:]); err == nil {
		_, _ = c.Write(request[:n])
		_, _ = c.Read(request[:])
	}
}

// askOnce sends a request over a connection of its own, and waits for the answer.
func askOnce(addr string) error {
	c, err := net.DialTimeout("tcp4", addr, scontest.Patience)
	if err != nil {
		return err
	}
	defer c.Close()
	err = c.SetDeadline(time.Now().Add(scontest.Patience))
	var b [64]byte
	if err == nil {
		_, err = c.Write(b[:])
	}
	if err == nil {
		_, err = io.ReadFull(c, b[:])
	}
	return err
}

// Each connection that begins with the addresses and ports of one that has just ended is a new
// one for the rules.
func TestShortPortReuse(t *testing.T) {
	t.Parallel()
	b := newLiberal(t, scontest.Layout{})
	b.Sh(lab.Device, `nft add counter ip invalid new
		nft add rule ip invalid forward tcp dport 7777 ct state new counter name new`)
	wantNewEach(b, 1, func() *scontest.Connection {
		return b.ConnectTo("tcp", lab.Container(1), lab.Edge, netip.AddrPortFrom(lab.EdgeAddr, 7777), 7777, 40000)
	})
}

// wantNewEach has connections with the same addresses and ports begin, exchange requests and
// end, and fails unless each was a new one for the rules.
func wantNewEach(b *scontest.Bed, requests int, connect func() *scontest.Connection) {
	b.T.Helper()
	const times = 5
	for range times {
		c := connect()
		c.MustPing(requests)
		// The server's end waits: the client may use its port again at once.
		for _, e := range [...]int{1, 0} {
			ends := c.Ends()[e]
			if err := scontest.CloseWrite(ends[0]); err != nil {
				b.T.Fatal(err)
			}
			scontest.WantEnd(b.T, ends[1], io.EOF)
		}
		c.Close()
	}
	out := b.Sh(lab.Device, "nft list counter ip invalid new")
	if m := regexp.MustCompile(`packets (\d+)`).FindStringSubmatch(out); m == nil || m[1] != strconv.Itoa(times) {
		b.T.Errorf("%d connections began with the same ports, and the rules have seen: %s", times, out)
	}
	b.WantNoInvalid()
}

// Connections that went express go on when the daemon is killed, and its successor knows
// those that have ended.
func TestShortKilled(t *testing.T) {
	t.Parallel()
	b := newLiberal(t, scontest.Layout{})
	var lasting, ended []*scontest.Connection
	for i := range 40 {
		connect := [...]func(*scontest.Bed, string, int) *scontest.Connection{(*scontest.Bed).Outgoing, (*scontest.Bed).Incoming}[i%2]
		c := connect(b, "tcp", 1)
		c.MustPing(2)
		if i%4 < 2 {
			lasting = append(lasting, c)
			continue
		}
		finish(c)
		ended = append(ended, c)
	}
	b.Daemon.Kill()
	for _, c := range lasting {
		c.MustPing(1)
	}
	time.Sleep(1500 * time.Millisecond) // the programs are inert
	for _, c := range lasting {
		c.MustPing(1)
	}
	b.Up()
	for _, c := range lasting {
		c.MustPing(4)
		finish(c)
		wantState(c, stateTimeWait, stateTimeWait)
	}
	for _, c := range ended {
		wantState(c, stateTimeWait, stateTimeWait)
	}
	b.WantNoInvalid()
}

// Where conntrack begins to judge sequence numbers again, those of connections that went
// express stay out of it.
func TestShortStrictAgain(t *testing.T) {
	t.Parallel()
	b := newLiberal(t, scontest.Layout{})
	var all []*scontest.Connection
	for range 10 {
		for _, connect := range families {
			c := connect(b, "tcp", 1)
			c.MustPing(2)
			all = append(all, c)
		}
	}
	time.Sleep(1500 * time.Millisecond)
	setLiberal(b, 0)
	time.Sleep(time.Second)
	for _, c := range all {
		c.Exchange(1 << 16)
		finish(c)
		wantState(c, stateTimeWait, stateTimeWait)
	}
	b.WantNoInvalid()
}

// A rule that judges single packets keeps the next short connections regular, and one that
// drops a connection ends what goes express of it.
func TestShortRules(t *testing.T) {
	t.Parallel()
	b := newLiberal(t, scontest.Layout{})
	c := b.Outgoing("tcp", 1)
	c.MustPing(2)
	b.Sh(lab.Device, fmt.Sprintf("nft insert rule ip invalid forward tcp sport %d drop", c.Port()))
	scontest.Eventually(t, "the rule drops its packets", func() error {
		if _, err := c.Client.Write([]byte("x")); err != nil {
			return err
		}
		if err := c.Server.SetReadDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
			return err
		}
		if n, _ := c.Server.Read(make([]byte, 1)); n != 0 {
			return errors.New("one has passed")
		}
		return nil
	})
	b.Sh(lab.Device, "nft add rule ip invalid forward tcp flags fin meta mark set 7")
	time.Sleep(time.Second) // until those of the connection before are counted
	before := b.Status().Totals.ExpressPackets
	c = b.Outgoing("tcp", 1)
	c.MustPing(1)
	finish(c)
	time.Sleep(400 * time.Millisecond)
	if n := b.Status().Totals.ExpressPackets - before; n != 0 {
		t.Errorf("%d packets went express that a rule judges", n)
	}
}

// The setting has conntrack accept TCP whatever its sequence numbers until the daemon ends, also
// if an earlier one has set it and was killed. A value of somebody else stays.
func TestShortSetting(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{Config: func(c *config.Config) { c.ShortConnections = true }})
	wantLiberal(b, "0")
	b.Up()
	wantLiberal(b, "1")
	b.Daemon.Kill()
	b.Up()
	b.Daemon.Down()
	wantLiberal(b, "0")
	b.Up()
	wantLiberal(b, "1")
	c := b.Outgoing("tcp", 1)
	c.Exchange(1 << 20) // conntrack sees a few of its packets
	b.Daemon.Kill()
	if err := b.Clean(); err != nil {
		t.Fatal(err)
	}
	wantLiberal(b, "0")
	c.Exchange(1 << 20)
	b.WantNoInvalid()
	b.Up()
	wantLiberal(b, "1")
	b.Daemon.Kill()
	b.Config.ShortConnections = false
	b.Up()
	wantLiberal(b, "0")
	setLiberal(b, 1)
	b.Daemon.Down()
	wantLiberal(b, "1")
}

// The uplink's MTU becomes less than what packets of a short connection may have before one as
// long was seen: none is longer than the MTU.
func TestShortNarrow(t *testing.T) {
	t.Parallel()
	b := newLiberal(t, scontest.Layout{})
	b.Sh(lab.Edge, `nft add table ip watch
		nft add chain ip watch in { type filter hook prerouting priority -300 ; }
		nft add rule ip watch in ip length 901-1280 counter`)
	for range 5 {
		c := b.Outgoing("tcp", 1)
		c.MustPing(2)
		b.Sh(lab.Device, "ip link set eth0 mtu 900")
		time.Sleep(400 * time.Millisecond) // two heartbeats, and less than until it is like others
		c.MustPing(2)
		if _, err := c.Client.Write(make([]byte, 1200)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c.Server, make([]byte, 1200)); err != nil {
			t.Fatal(err)
		}
		if counted := b.Sh(lab.Edge, "nft list chain ip watch in"); !strings.Contains(counted, "counter packets 0 ") {
			t.Fatalf("packets were longer than the MTU:\n%s", counted)
		}
		b.Sh(lab.Device, "ip link set eth0 mtu 1500\nip route flush cache")
		time.Sleep(400 * time.Millisecond)
	}
}

// Conntrack's table is flushed: connections go on as without SCON, by a regular packet.
func TestShortDeleted(t *testing.T) {
	t.Parallel()
	b := newLiberal(t, scontest.Layout{})
	for name, connect := range scontest.Directions {
		t.Run(name, func(t *testing.T) {
			c := connect(b.In(t), "tcp", 1)
			c.MustPing(2)
			time.Sleep(100 * time.Millisecond) // no acknowledgement is delayed any more
			b.Sh(lab.Device, "conntrack -F")
			c.MustPing(1)
			wantState(c, conntrack.TCPEstablished, conntrack.TCPEstablished)
		})
	}
}
