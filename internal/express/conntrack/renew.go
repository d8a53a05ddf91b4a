package conntrack

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// ctnetlink cannot set the windows that conntrack remembers of a TCP connection. An
// entry that is created again has none: conntrack takes them from the packets that
// follow.

// ErrLost is wrapped when a connection's entry was deleted and could not be created
// again.
var ErrLost = errors.New("conntrack has lost the connection")

// Attributes of what Renew creates again, or cannot.
const (
	attrNATSrc   = 6
	attrNATDst   = 13
	attrMaster   = 14
	attrSecCtx   = 19
	attrLabels   = 22
	attrSynproxy = 24

	attrTupleZone = 3

	attrTCPScaleOriginal = 2
	attrTCPScaleReply    = 3

	attrNATV4Min   = 1
	attrNATV4Max   = 2
	attrNATProto   = 3
	attrNATV6Min   = 4
	attrNATV6Max   = 5
	attrNATPortMin = 1
	attrNATPortMax = 2

	attrExpectMaster = 1
)

// Bits of Conn.Status.
const (
	statusSeenReply  = 1 << 1
	statusSrcNAT     = 1 << 4
	statusDstNAT     = 1 << 5
	statusOffload    = 1<<14 | 1<<15 // by a flowtable, in software or hardware
	statusBothWays   = statusSeenReply | statusAssured | statusConfirmed
	tcpWindowScale   = 0x01
	tcpSACKPermitted = 0x02
)

// ErrFull means that conntrack's table was full for long, and others took every place.
var ErrFull = errors.New("conntrack's table is full")

// createAttempts is how often Renew tries to create an entry. While the table is full it tries
// again after createPause, for waitForRoom in all calls.
const (
	createAttempts = 3
	createPause    = 10 * time.Millisecond
	waitForRoom    = time.Second
)

// Entry is a TCP connection with all that Renew creates again.
type Entry struct {
	Conn
	Scales [2]uint8 // of the windows of the original and the reply direction
	// Obstacle says what keeps Renew from creating the same entry, "" for nothing.
	Obstacle string
}

// DumpEntries calls fn for every TCP connection, as Dump does.
func (c *Client) DumpEntries(fn func(Entry)) error {
	err := do(c.dump, msgGet, unix.NLM_F_DUMP, unix.AF_UNSPEC, nil, func(m nlmsg.Message) {
		if e, ok := parseEntry(m.Data); ok {
			fn(e)
		}
	})
	if err != nil {
		return fmt.Errorf("dump connections: %w", err)
	}
	return nil
}

// Expecting returns the connections of which conntrack expects others.
func (c *Client) Expecting() (masters map[Tuple]bool, err error) {
	masters = make(map[Tuple]bool)
	err = do(c.dump, msgGetExpected, unix.NLM_F_DUMP, unix.AF_UNSPEC, nil, func(m nlmsg.Message) {
		for typ, data := range nlmsg.Attributes(m.Data[min(nlmsg.SizeofNfgenmsg, len(m.Data)):]) {
			if typ == attrExpectMaster {
				masters[parseTuple(data)] = true
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("dump expected connections: %w", err)
	}
	return masters, nil
}

// SeenInWindow reports whether a packet of each direction was within the windows since
// UpdateTCP or Renew.
func (c Conn) SeenInWindow() (both, any bool) {
	return c.TCPFlags[0]&c.TCPFlags[1]&tcpMaxAckSet != 0, (c.TCPFlags[0]|c.TCPFlags[1])&tcpMaxAckSet != 0
}

// Renewer replaces entries. It is safe for concurrent use, but for Renew.
type Renewer struct {
	*Client
	commands *nlmsg.Commands
	room     time.Duration // Renew may wait for
}

// OpenRenewer opens one for the namespace of the calling thread.
func OpenRenewer() (*Renewer, error) {
	c, err := Open()
	if err != nil {
		return nil, err
	}
	commands, err := nlmsg.OpenCommands(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &Renewer{c, commands, waitForRoom}, nil
}

// Close closes it.
func (r *Renewer) Close() error {
	r.commands.Close()
	return r.Client.Close()
}

// Renew deletes a connection's entry and creates it again, without windows, and
// liberal. Both requests are in one datagram, which the kernel carries out even if the
// process is killed; a packet that comes between them begins a new connection unless a
// rule drops it. What is lost: counters, the time of the connection's begin, a timeout
// policy, and the device of masquerading. The error wraps ErrNotFound if the connection
// has ended, and ErrLost if its entry could not be created again; with any other one
// nothing has changed. It is ErrFull once calls have waited for room in the table in vain.
func (r *Renewer) Renew(e Entry) error {
	if r.room <= 0 {
		return ErrFull
	}
	remove, create := e.commands()
	refused, err := r.commands.Each(remove, create)
	if err != nil {
		return err
	}
	gone, lost := refused[0], refused[1]
	if gone != nil {
		if lost == nil { // this entry is of a connection that has ended
			if stale, err := r.Entry(e.Orig); err == nil {
				_ = r.Delete(stale.Conn)
			}
		}
		if errors.Is(gone, unix.ENOENT) {
			gone = ErrNotFound
		}
		return fmt.Errorf("%s: %w", remove.What, gone)
	}
	for i := 1; lost != nil; i++ {
		if full := errors.Is(lost, unix.ENOMEM); full && r.room > 0 {
			time.Sleep(createPause)
			r.room -= createPause
		} else if full || i >= createAttempts {
			break
		}
		lost = r.commands.Do(create)
	}
	if lost != nil {
		return fmt.Errorf("%w: %w", ErrLost, lost)
	}
	return nil
}

// Try creates an entry of addresses that no connection has, and so tells whether the
// kernel creates entries as Renew needs them. It expires if the process is killed.
func (r *Renewer) Try(ipv6 bool) error {
	addr := netip.AddrFrom4([4]byte{192, 0, 2, 1})
	if ipv6 {
		addr = netip.AddrFrom16([16]byte{0: 1, 15: 1}) // 100::1
	}
	var ends [4]netip.AddrPort
	for i := range ends {
		ends[i] = netip.AddrPortFrom(addr, uint16(i+1))
		addr = addr.Next()
	}
	const flags = tcpWindowScale | tcpBeLiberal
	want := Entry{
		Conn: Conn{
			Orig: Tuple{unix.IPPROTO_TCP, ends[0], ends[1]}, Reply: Tuple{unix.IPPROTO_TCP, ends[2], ends[3]},
			TCPState: TCPEstablished, Timeout: 10 * time.Second, TCPFlags: [2]uint8{flags, flags},
		},
		Scales: [2]uint8{7, 8},
	}
	_, create := want.commands()
	create.Allow = unix.EEXIST // left by a process that was killed
	if err := r.commands.Do(create); err != nil {
		return err
	}
	got, err := r.Entry(want.Orig)
	if err != nil {
		return err
	}
	if got.Reply != want.Reply || got.Scales != want.Scales || got.TCPFlags != want.TCPFlags || got.Obstacle != "" {
		err = fmt.Errorf("%s: the entry is another one: %s", create.What, got.Obstacle)
	}
	return errors.Join(err, r.Delete(got.Conn))
}

// Entry returns the entry of a TCP connection, by the tuple of its original direction.
// The error wraps ErrNotFound if there is none.
func (c *Client) Entry(t Tuple) (e Entry, err error) {
	whole := false
	err = c.request(msgGet, 0, t, nil, func(m nlmsg.Message) { e, whole = parseEntry(m.Data) })
	if err == nil && (!whole || e.Orig != t) {
		err = ErrNotFound
	}
	if err != nil {
		return Entry{}, fmt.Errorf("get connection %v: %w", t, err)
	}
	return e, nil
}

// commands returns the requests that delete the entry and create it.
func (e Entry) commands() (remove, create nlmsg.Command) {
	begin := appendQuestion(nil, e.Orig)
	what := e.Orig.String()
	return nlmsg.Command{What: "delete " + what, Type: msgDelete, Data: slices.Concat(begin, nlmsg.Be32(attrID, e.ID))},
		nlmsg.Command{
			What: "create " + what, Type: msgNew, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL,
			Data: slices.Concat(begin, e.attrs()),
		}
}

// attrs returns all attributes but the original tuple. The kernel makes the reply tuple
// of a translated connection itself.
func (e Entry) attrs() (b []byte) {
	b = e.Orig.Reverse().appendTo(nil, attrTupleReply)
	if e.Reply.Dst != e.Orig.Src {
		b = append(b, translation(attrNATSrc, e.Reply.Dst)...)
	}
	if e.Reply.Src != e.Orig.Dst {
		b = append(b, translation(attrNATDst, e.Reply.Src)...)
	}
	if e.Mark != 0 {
		b = append(b, nlmsg.Be32(attrMark, e.Mark)...)
	}
	const keep, all = tcpWindowScale | tcpSACKPermitted, 0xff
	return slices.Concat(b,
		nlmsg.Be32(attrStatus, statusBothWays),
		nlmsg.Be32(attrTimeout, uint32(max(e.Timeout/time.Second, 1))),
		nlmsg.Nested(attrProtoInfo, nlmsg.Nested(attrProtoInfoTCP,
			nlmsg.Attr(attrTCPState, []byte{e.TCPState}),
			nlmsg.Attr(attrTCPScaleOriginal, e.Scales[:1]),
			nlmsg.Attr(attrTCPScaleReply, e.Scales[1:]),
			nlmsg.Attr(attrTCPFlagsOriginal, []byte{e.TCPFlags[0]&keep | tcpBeLiberal, all}),
			nlmsg.Attr(attrTCPFlagsReply, []byte{e.TCPFlags[1]&keep | tcpBeLiberal, all}))))
}

// translation returns the attribute of a translation to one address and port.
func translation(typ uint16, to netip.AddrPort) []byte {
	low, high := uint16(attrNATV4Min), uint16(attrNATV4Max)
	if to.Addr().Is6() {
		low, high = attrNATV6Min, attrNATV6Max
	}
	addr := to.Addr().AsSlice()
	return nlmsg.Nested(typ, nlmsg.Attr(low, addr), nlmsg.Attr(high, addr),
		nlmsg.Nested(attrNATProto, appendPort(appendPort(nil, attrNATPortMin, to), attrNATPortMax, to)))
}

// parseEntry parses a message, which begins with struct nfgenmsg. It reports false if the
// message is not a complete TCP connection.
func parseEntry(b []byte) (e Entry, ok bool) {
	if e.Conn, ok = parseConn(b); !ok || e.Orig.Proto != unix.IPPROTO_TCP {
		return Entry{}, false
	}
	for typ, data := range nlmsg.Attributes(b[nlmsg.SizeofNfgenmsg:]) {
		switch typ {
		case attrProtoInfo:
			e.parseScales(data)
		case attrTupleOrig, attrTupleReply:
			for typ := range nlmsg.Attributes(data) {
				if typ == attrTupleZone {
					e.Obstacle = "one direction is in a zone"
				}
			}
		case attrMaster:
			e.Obstacle = "another connection expected it"
		case attrSecCtx:
			e.Obstacle = "it has a security context"
		case attrSynproxy: // of zeros in an entry that was created by ctnetlink
			for _, n := range nlmsg.Attributes(data) {
				if be32(n) != 0 {
					e.Obstacle = "it came by synproxy"
				}
			}
		case attrLabels:
			if len(bytes.Trim(data, "\x00")) > 0 {
				e.Obstacle = "it has labels"
			}
		}
	}
	if e.Obstacle == "" {
		e.Obstacle = e.obstacle()
	}
	return e, true
}

// obstacle is Entry.Obstacle as far as a connection's other fields tell.
func (c Conn) obstacle() string {
	nat := uint32(0)
	if c.Reply.Dst != c.Orig.Src {
		nat |= statusSrcNAT
	}
	if c.Reply.Src != c.Orig.Dst {
		nat |= statusDstNAT
	}
	switch {
	case c.TCPState != TCPEstablished || c.Dying():
		return "it is not established, or ending"
	case (c.TCPFlags[0]|c.TCPFlags[1])&tcpWindowScale == 0:
		return "conntrack has not seen how its windows are scaled"
	case c.Status&statusBothWays != statusBothWays:
		return "conntrack has not seen packets of both directions"
	case c.Zone != 0:
		return "it is in a zone"
	case c.Helper != "":
		return "the helper " + c.Helper + " reads it"
	case c.SeqAdj:
		return "its sequence numbers are rewritten"
	case c.Offloaded():
		return "a flowtable forwards it"
	case c.Status&(statusSrcNAT|statusDstNAT) != nat:
		return "its translation is not the one of its addresses"
	}
	return ""
}

// parseScales parses the payload of a protocol information attribute.
func (e *Entry) parseScales(b []byte) {
	for _, data := range nlmsg.Attributes(b) {
		for typ, data := range nlmsg.Attributes(data) {
			switch {
			case typ == attrTCPScaleOriginal && len(data) == 1:
				e.Scales[0] = data[0]
			case typ == attrTCPScaleReply && len(data) == 1:
				e.Scales[1] = data[0]
			}
		}
	}
}
