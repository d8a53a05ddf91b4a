package conntrack

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/test/bed/nstest"
)

// send sends three datagrams of 100 bytes on a new connection.
func send(t *testing.T, ns string) (orig Tuple) {
	t.Helper()
	var server, client net.Conn
	var err error
	nstest.Do(t, ns, func() {
		server, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 9, 0, 1)})
		if err == nil {
			client, err = net.Dial("udp4", server.LocalAddr().String())
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	defer client.Close()
	for range 3 {
		if _, err := client.Write(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
	}
	return Tuple{
		Proto: unix.IPPROTO_UDP,
		Src:   netip.MustParseAddrPort(client.LocalAddr().String()),
		Dst:   netip.MustParseAddrPort(client.RemoteAddr().String()),
	}
}

// counters are those of each connection among tuples that is counted.
func counters(t *testing.T, client *Client, tuples ...Tuple) map[Tuple]Counted {
	t.Helper()
	all := make(map[Tuple]Counted)
	if err := client.Counters(tuples, func(c Counted) { all[c.Orig] = c }); err != nil {
		t.Fatal(err)
	}
	return all
}

// sent is what send makes conntrack count: IP and UDP headers are in it.
var sent = [2]Counters{{Packets: 3, Bytes: 3 * 128}, {}}

// Connections are counted that began while they should be.
func TestCounters(t *testing.T) {
	ns, client := tracked(t)
	uncounted := send(t, ns)
	nstest.Run(t, ns, "sysctl -q -w net.netfilter.nf_conntrack_acct=1")
	counted := send(t, ns)
	conn, err := client.Get(counted)
	if err != nil {
		t.Fatal(err)
	}
	unknown := Tuple{Proto: unix.IPPROTO_UDP, Src: counted.Dst, Dst: netip.MustParseAddrPort("10.9.0.9:9")}
	all := counters(t, client, uncounted, unknown, counted.Reverse())
	if c := all[counted]; c.Counters != sent || c.ID != conn.ID {
		t.Errorf("got %+v, want %+v of connection %d", c, sent, conn.ID)
	}
	if len(all) != 1 {
		t.Errorf("counted: %+v", all)
	}
	many := make([]Tuple, 3*askedAtOnce)
	for i := range many {
		many[i] = unknown
	}
	if all := counters(t, client, append(many, counted)...); len(all) != 1 {
		t.Errorf("counted behind many that are unknown: %+v", all)
	}
}

// No kernel takes counters from outside: docs/accounting.md says so.
func TestCountersStay(t *testing.T) {
	ns, client := tracked(t)
	nstest.Run(t, ns, "sysctl -q -w net.netfilter.nf_conntrack_acct=1")
	tuple := send(t, ns)
	attrs := nlmsg.Nested(attrCountersOrig,
		nlmsg.Attr(attrCountersPackets, binary.BigEndian.AppendUint64(nil, 1000)),
		nlmsg.Attr(attrCountersBytes, binary.BigEndian.AppendUint64(nil, 100_000)))
	err := client.request(msgNew, unix.NLM_F_ACK, tuple, attrs, nil)
	if err != nil {
		t.Logf("refused: %v", err)
	}
	if c := counters(t, client, tuple)[tuple]; c.Counters != sent {
		t.Errorf("set to %+v: docs/accounting.md is out of date", c)
	}
}
