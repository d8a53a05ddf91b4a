// Package conntrack reads the kernel's connection tracking table over
// ctnetlink, makes single connections tolerate packets that conntrack did not
// see, and follows connections that leave the table. It works on the network
// namespace of the calling thread and knows TCP and UDP over IPv4 and IPv6.
package conntrack

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// ErrNotFound is wrapped when the kernel tracks no such connection.
var ErrNotFound = errors.New("no such connection")

// Values of Conn.TCPState.
const (
	TCPEstablished = 3
	TCPCloseWait   = 5 // one end has sent its last data
	TCPTimeWait    = 7 // both have
	TCPClosed      = 8 // by a RST
)

// Bits of Conn.Status (enum ip_conntrack_status).
const (
	statusAssured   = 1 << 2
	statusConfirmed = 1 << 3
	statusSeqAdjust = 1 << 6
	statusDying     = 1 << 9
)

// Bits of Conn.TCPFlags (IP_CT_TCP_FLAG_*).
const (
	tcpCloseInit      = 0x04 // has sent its last data: a SYN may begin the connection anew
	tcpBeLiberal      = 0x08 // accept every sequence number
	tcpUnacknowledged = 0x10 // data was seen, and no acknowledgement of it
	tcpMaxAckSet      = 0x20 // check a RST against the highest acknowledgement seen
)

// Tuple is one direction of a connection.
type Tuple struct {
	Proto    uint8 // IPPROTO_TCP or IPPROTO_UDP
	Src, Dst netip.AddrPort
}

// Reverse returns the tuple of the opposite direction, without address
// translation.
func (t Tuple) Reverse() Tuple {
	return Tuple{t.Proto, t.Dst, t.Src}
}

// Conn is a connection as the kernel tracks it.
type Conn struct {
	Orig, Reply Tuple // Reply is after address translation, as its packets arrive
	ID          uint32
	Status      uint32 // IPS_*
	Mark        uint32
	Zone        uint16
	Timeout     time.Duration // until it expires without packets; seconds
	TCPState    uint8         // TCP only; TCPEstablished, ...
	TCPFlags    [2]uint8      // TCP only; of the original and the reply direction
	Helper      string        // the conntrack helper of the connection, "" for none
	SeqAdj      bool          // sequence numbers are rewritten
}

// Unacknowledged reports whether conntrack waits to see data acknowledged, in
// either direction.
func (c Conn) Unacknowledged() bool {
	return (c.TCPFlags[0]|c.TCPFlags[1])&tcpUnacknowledged != 0
}

// Assured reports whether packets were seen in both directions, so that the entry is
// kept when the table is full.
func (c Conn) Assured() bool { return c.Status&statusAssured != 0 }

// AsAssured is the connection as it will be then, if nothing else changes.
func (c Conn) AsAssured() Conn {
	c.Status |= statusAssured
	return c
}

// Replied reports whether a packet of the reply direction was seen.
func (c Conn) Replied() bool { return c.Status&statusSeenReply != 0 }

// Confirmed reports whether the first packet passed every chain.
func (c Conn) Confirmed() bool { return c.Status&statusConfirmed != 0 }

// Offloaded reports whether a flowtable, or tc's action ct, forwards packets of the
// connection before conntrack sees them. Its timeout and TCP state are not told then
// (net/netfilter/nf_conntrack_netlink.c, ctnetlink_dump_info).
func (c Conn) Offloaded() bool { return c.Status&statusOffload != 0 }

// Dying reports whether the entry is being removed from the table.
func (c Conn) Dying() bool { return c.Status&statusDying != 0 }

// Same reports whether two are one connection. The kernel makes the ID of where an entry is
// and of its first tuple (net/netfilter/nf_conntrack_core.c, nf_ct_get_id): one that takes the
// place of another one of the same tuple has its ID, and may be translated in another way.
func (c Conn) Same(o Conn) bool { return c.ID == o.ID && c.Orig == o.Orig && c.Reply == o.Reply }

// Translated reports whether an address or a port is translated.
func (c Conn) Translated() bool { return c.Reply != c.Orig.Reverse() }

// Liberal reports whether conntrack accepts every sequence number of a TCP
// connection that has not ended, as after UpdateTCP.
func (c Conn) Liberal() bool {
	return c.TCPFlags[0]&c.TCPFlags[1]&tcpBeLiberal != 0 && c.TCPState < TCPTimeWait
}

// Client asks the kernel about connections. It is safe for concurrent use.
type Client struct {
	single *nlmsg.Requests // about one connection
	dump   *nlmsg.Requests // another socket, so that single requests do not wait for a long dump
}

// Open opens a client for the namespace of the calling thread.
func Open() (_ *Client, err error) {
	c := new(Client)
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	for _, s := range []**nlmsg.Requests{&c.single, &c.dump} {
		if *s, err = nlmsg.OpenRequests(unix.NETLINK_NETFILTER); err != nil {
			return nil, fmt.Errorf("open ctnetlink: %w", err)
		}
	}
	return c, nil
}

// Close closes the client.
func (c *Client) Close() error {
	var errs []error
	for _, s := range []*nlmsg.Requests{c.single, c.dump} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	return errors.Join(errs...)
}

// Get returns the connection that a tuple belongs to, whichever direction the
// tuple is of. The error wraps ErrNotFound if there is none.
func (c *Client) Get(t Tuple) (conn Conn, err error) {
	whole := false
	err = c.request(msgGet, 0, t, nil, func(m nlmsg.Message) {
		conn, whole = parseConn(m.Data)
	})
	if err == nil && !whole {
		err = ErrNotFound
	}
	if err != nil {
		return Conn{}, fmt.Errorf("get connection %v: %w", t, err)
	}
	return conn, nil
}

// Answer is what Get returns.
type Answer struct {
	Conn Conn
	Err  error
}

// askedAtOnce bounds how many answers wait in the socket's buffer.
const askedAtOnce = 32

// GetAll does what Get does for each of several tuples, with fewer system calls.
func (c *Client) GetAll(all []Tuple) []Answer { return c.askAll(all, false) }

// MakeLiberal does what UpdateTCP does for those of several tuples that are of TCP, and
// returns what GetAll does after that. Conn.Liberal tells of each whether it was done.
func (c *Client) MakeLiberal(all []Tuple) []Answer { return c.askAll(all, true) }

func (c *Client) askAll(all []Tuple, liberal bool) []Answer {
	answers := make([]Answer, 0, len(all))
	for part := range slices.Chunk(all, askedAtOnce) {
		answers = append(answers, c.askPart(part, liberal)...)
	}
	return answers
}

// sizeofQuestion is about the length of a request about one connection.
const sizeofQuestion = 96

func (c *Client) askPart(all []Tuple, liberal bool) []Answer {
	answers := make([]Answer, len(all))
	requests := make([]nlmsg.Request, 0, 2*len(all))
	of := make([]int, 0, cap(requests)) // the tuple that a request is about
	b := make([]byte, 0, cap(requests)*sizeofQuestion)
	for i, t := range all {
		answers[i].Err = ErrNotFound
		begin := len(b)
		b = appendQuestion(b, t)
		end := len(b)
		if liberal && t.Proto == unix.IPPROTO_TCP {
			b = append(append(b, b[begin:end]...), makeLiberal...)
			requests, of = append(requests, nlmsg.Request{Type: msgNew, Data: b[end:], Quiet: true}), append(of, i)
		}
		requests, of = append(requests, nlmsg.Request{Type: msgGet, Data: b[begin:end]}), append(of, i)
	}
	err := c.single.Each(requests, func(i int, m nlmsg.Message, err error) {
		answer := &answers[of[i]]
		if errors.Is(err, unix.ENOENT) || requests[i].Quiet { // then conn is not liberal
			return
		}
		if err != nil {
			answer.Err = err
		} else if conn, whole := parseConn(m.Data); whole {
			*answer = Answer{Conn: conn}
		}
	})
	if err != nil {
		return failed(answers, err)
	}
	for i := range answers {
		if answers[i].Err != nil {
			answers[i].Err = fmt.Errorf("get connection %v: %w", all[i], answers[i].Err)
		}
	}
	return answers
}

// updatedAtOnce bounds how many updates are one message: the kernel answers only the last one.
const updatedAtOnce = 128

// UpdateAll does what UpdateTCP does for the connections of several tuples, with fewer system
// calls. Those that are gone do not matter.
func (c *Client) UpdateAll(all []Tuple, u TCPUpdate) error {
	var errs []error
	attrs := u.attrs(u.flags())
	for part := range slices.Chunk(all, updatedAtOnce) {
		err := c.updatePart(part, attrs)
		if err != nil { // such as a full buffer: once more
			err = c.updatePart(part, attrs)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("update connections: %w", err)
	}
	return nil
}

func (c *Client) updatePart(part []Tuple, attrs []byte) (failed error) {
	requests := make([]nlmsg.Request, len(part))
	b := make([]byte, 0, len(part)*(sizeofQuestion+len(attrs)))
	for i, t := range part {
		begin := len(b)
		b = append(appendQuestion(b, t), attrs...)
		requests[i] = nlmsg.Request{Type: msgNew, Data: b[begin:], Quiet: true}
	}
	// The last one is answered, so that no errors pile up.
	last := &requests[len(requests)-1]
	last.Flags, last.Quiet = unix.NLM_F_ACK, false
	err := c.single.Each(requests, func(_ int, _ nlmsg.Message, err error) {
		if err != nil && !errors.Is(err, unix.ENOENT) {
			failed = err
		}
	})
	return cmp.Or(err, failed)
}

// MakeAllLiberal does what UpdateTCP does for every established connection of TCP.
func (c *Client) MakeAllLiberal() error {
	var all []Tuple
	err := c.Dump(func(conn Conn) {
		if conn.Orig.Proto == unix.IPPROTO_TCP && conn.TCPState == TCPEstablished && !conn.Liberal() {
			all = append(all, conn.Orig)
		}
	})
	return errors.Join(err, c.UpdateAll(all, TCPUpdate{}))
}

// failed makes all answers an error.
func failed(answers []Answer, err error) []Answer {
	for i := range answers {
		answers[i] = Answer{Err: fmt.Errorf("get connections: %w", err)}
	}
	return answers
}

// TCPUpdate is what UpdateTCP corrects of a TCP connection of which conntrack
// has not seen every packet.
type TCPUpdate struct {
	// Acknowledged means that all data has been acknowledged. Without it
	// conntrack keeps an idle connection for minutes instead of days.
	Acknowledged bool
	// State is the connection's, one of those above; 0 leaves it.
	State uint8
	// Timeout is how long the connection may be idle; 0 leaves it.
	Timeout time.Duration
}

// UpdateTCP makes conntrack accept packets of one TCP connection whose
// sequence numbers do not fit what it saw, and forget the acknowledgement that
// it would check a RST against, in both directions. Apart from that it changes
// only what u says. The error wraps ErrNotFound if the connection is gone.
func (c *Client) UpdateTCP(conn Conn, u TCPUpdate) error {
	flags, touch := u.flags()
	return c.updateTCP(conn, u, flags, touch)
}

// flags returns those that UpdateTCP sets, and all that it sets or clears.
func (u TCPUpdate) flags() (flags, touch byte) {
	flags, touch = tcpBeLiberal, tcpBeLiberal|tcpMaxAckSet
	if u.Acknowledged {
		touch |= tcpUnacknowledged
	}
	if u.State == TCPCloseWait || u.State == TCPTimeWait {
		flags, touch = flags|tcpCloseInit, touch|tcpCloseInit
	}
	return flags, touch
}

// JudgeTCP makes conntrack judge the sequence numbers of a TCP connection again. The
// error wraps ErrNotFound if the connection is gone.
func (c *Client) JudgeTCP(conn Conn) error {
	return c.updateTCP(conn, TCPUpdate{}, 0, tcpBeLiberal)
}

// makeLiberal are the attributes by which UpdateTCP changes nothing else.
var makeLiberal = TCPUpdate{}.attrs(tcpBeLiberal, tcpBeLiberal|tcpMaxAckSet)

// updateTCP sets flags in both directions, of those in touch.
func (c *Client) updateTCP(conn Conn, u TCPUpdate, flags, touch byte) error {
	if err := c.change(msgNew, conn, u.attrs(flags, touch)); err != nil {
		return fmt.Errorf("update connection %v: %w", conn.Orig, err)
	}
	return nil
}

func (u TCPUpdate) attrs(flags, touch byte) (b []byte) {
	if u.Timeout != 0 {
		b = nlmsg.Be32(attrTimeout, uint32(u.Timeout/time.Second))
	}
	b, info := nlmsg.Begin(b, attrProtoInfo)
	b, tcp := nlmsg.Begin(b, attrProtoInfoTCP)
	if u.State != 0 {
		b = nlmsg.Append(b, attrTCPState, u.State)
	}
	// struct nf_ct_tcp_flags
	b = nlmsg.Append(nlmsg.Append(b, attrTCPFlagsOriginal, flags, touch), attrTCPFlagsReply, flags, touch)
	return nlmsg.End(nlmsg.End(b, tcp), info)
}

// SetTimeout sets how long a connection may be idle. The error wraps ErrNotFound if
// the connection is gone.
func (c *Client) SetTimeout(conn Conn, timeout time.Duration) error {
	if err := c.change(msgNew, conn, nlmsg.Be32(attrTimeout, uint32(timeout/time.Second))); err != nil {
		return fmt.Errorf("set the timeout of connection %v: %w", conn.Orig, err)
	}
	return nil
}

// Delete removes a connection from the table. Its packets begin a new one, if the
// rules and the address translation let them. The error wraps ErrNotFound if the
// connection is gone.
func (c *Client) Delete(conn Conn) error {
	if err := c.change(msgDelete, conn, nlmsg.Be32(attrID, conn.ID)); err != nil {
		return fmt.Errorf("delete connection %v: %w", conn.Orig, err)
	}
	return nil
}

// change changes a connection, which may be in a zone, or deletes it.
func (c *Client) change(msg uint16, conn Conn, attrs []byte) error {
	if conn.Zone != 0 {
		attrs = nlmsg.Append(attrs, attrZone, byte(conn.Zone>>8), byte(conn.Zone))
	}
	return c.request(msg, unix.NLM_F_ACK, conn.Orig, attrs, nil)
}

// Dump calls fn for every connection in the table. The kernel lists them in
// pieces: connections may come and go meanwhile.
func (c *Client) Dump(fn func(Conn)) error {
	err := do(c.dump, msgGet, unix.NLM_F_DUMP, unix.AF_UNSPEC, nil, func(m nlmsg.Message) {
		if conn, ok := parseConn(m.Data); ok {
			fn(conn)
		}
	})
	if err != nil {
		return fmt.Errorf("dump connections: %w", err)
	}
	return nil
}

// request sends a request about one connection, with further attributes, and calls
// reply with the answer.
func (c *Client) request(msg uint16, flags uint16, t Tuple, attrs []byte, reply func(nlmsg.Message)) error {
	data := append(appendQuestion(make([]byte, 0, 2*sizeofQuestion), t), attrs...)
	err := c.single.Request(nlmsg.Request{Type: msg, Flags: flags, Data: data}, reply)
	if errors.Is(err, unix.ENOENT) {
		return ErrNotFound
	}
	return err
}

// appendQuestion appends the payload of a request about one connection.
func appendQuestion(b []byte, t Tuple) []byte {
	return t.appendTo(append(b, t.family(), unix.NFNETLINK_V0, 0, 0), attrTupleOrig)
}

// do sends a ctnetlink request, and calls reply for each answer.
func do(sock *nlmsg.Requests, msg uint16, flags uint16, family byte, attrs []byte, reply func(nlmsg.Message)) error {
	return sock.Request(message(msg, flags, family, attrs), reply)
}

// message makes a ctnetlink request.
func message(msg uint16, flags uint16, family byte, attrs []byte) nlmsg.Request {
	return nlmsg.Request{
		Type:  msg,
		Flags: flags,
		Data:  append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attrs...), // struct nfgenmsg
	}
}
