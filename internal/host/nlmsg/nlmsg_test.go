package nlmsg

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/nstest"
)

func TestMessagesAndAttributes(t *testing.T) {
	attrs, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: 1, Data: []byte("odd")},
		{Type: 2 | netlink.Nested, Data: []byte{1, 2, 3, 4}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var datagram []byte
	for _, typ := range []uint16{16, 17} {
		b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(attrs)))
		b = binary.NativeEndian.AppendUint16(b, typ)
		b = append(b, make([]byte, unix.NLMSG_HDRLEN-len(b))...)
		datagram = append(append(datagram, b...), attrs...)
	}
	var got []string
	for m := range Messages(datagram) {
		for typ, data := range Attributes(m.Data) {
			got = append(got, fmt.Sprintf("%d:%d:%q", m.Type, typ, data))
		}
	}
	want := `[16:1:"odd" 16:2:"\x01\x02\x03\x04" 17:1:"odd" 17:2:"\x01\x02\x03\x04"]`
	if fmt.Sprint(got) != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func FuzzMessages(f *testing.F) {
	f.Add([]byte{20, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0})
	f.Add([]byte{0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		total := 0
		for m := range Messages(b) {
			total += unix.NLMSG_HDRLEN + len(m.Data)
			for _, data := range Attributes(m.Data) {
				if len(data) > len(m.Data)-unix.NLA_HDRLEN {
					t.Errorf("attribute of %d bytes in a message of %d", len(data), len(m.Data))
				}
			}
		}
		if total > len(b) {
			t.Errorf("messages of %d bytes in a datagram of %d", total, len(b))
		}
	})
}

// listen opens a socket for link messages in a namespace of its own.
func listen(t *testing.T, opts Options) (*Socket, string) {
	t.Helper()
	ns := nstest.New(t)
	opts.Family, opts.Groups = unix.NETLINK_ROUTE, []uint32{unix.RTNLGRP_LINK}
	var l *Socket
	var err error
	nstest.Do(t, ns, func() { l, err = Open(opts) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, ns
}

// getLink asks for one device by its number, or for all with the dump flag.
func getLink(index uint32, flags uint16) Request {
	header := binary.NativeEndian.AppendUint32(make([]byte, 4), index)
	return Request{
		Type: unix.RTM_GETLINK, Flags: flags,
		Data: append(header, make([]byte, unix.SizeofIfInfomsg-len(header))...),
	}
}

func TestRequest(t *testing.T) {
	ns := nstest.New(t)
	var s *Requests
	nstest.Do(t, ns, func() {
		var err error
		if s, err = OpenRequests(unix.NETLINK_ROUTE); err != nil {
			t.Fatal(err)
		}
	})
	nstest.Run(t, ns, "ip link add d0 type bridge")
	for _, tc := range []struct {
		name    string
		request Request
		want    string
	}{
		{"one", getLink(1, 0), "1 replies, <nil>"},
		{"none", getLink(12345, 0), "0 replies, no such device"},
		{"dump", getLink(0, unix.NLM_F_DUMP), "2 replies, <nil>"},
		{"acknowledged", getLink(1, unix.NLM_F_ACK), "1 replies, <nil>"},
		{"after one whose acknowledgement was left", getLink(12345, 0), "0 replies, no such device"},
	} {
		replies := 0
		err := s.Request(tc.request, func(m Message) { replies++ })
		if got := fmt.Sprintf("%d replies, %v", replies, err); got != tc.want {
			t.Errorf("%s: got %s, want %s", tc.name, got, tc.want)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Request(getLink(1, 0), func(Message) {}); !errors.Is(err, unix.EBADF) {
		t.Errorf("after Close: %v", err)
	}
}

// Commands after Close do not reach the socket that has its number now.
func TestCommandsAfterClose(t *testing.T) {
	open := func(ns string) (c *Commands) {
		nstest.Do(t, ns, func() {
			var err error
			if c, err = OpenCommands(unix.NETLINK_ROUTE); err != nil {
				t.Fatal(err)
			}
		})
		return c
	}
	closed := open(nstest.New(t))
	other := nstest.New(t)
	closed.Close()
	for range 12 {
		t.Cleanup(open(other).Close)
	}
	get := getLink(1, 0)
	if err := closed.Do(Command{What: "read lo", Type: get.Type, Data: get.Data}); !errors.Is(err, unix.EBADF) {
		t.Errorf("after Close: %v", err)
	}
}

// There is no bound on the commands: the socket need not have room for all acknowledgements. All
// are carried out, and the first error is returned. A socket that lost some is of use.
func TestManyCommands(t *testing.T) {
	ns := nstest.New(t)
	var c *Commands
	nstest.Do(t, ns, func() {
		var err error
		if c, err = OpenCommands(unix.NETLINK_ROUTE); err != nil {
			t.Fatal(err)
		}
	})
	defer c.Close()
	set := func(index, flags uint32) Command {
		get := getLink(index, 0)
		binary.NativeEndian.PutUint32(get.Data[8:], flags)
		binary.NativeEndian.PutUint32(get.Data[12:], unix.IFF_UP)
		return Command{What: fmt.Sprintf("set device %d", index), Type: unix.RTM_NEWLINK, Data: get.Data}
	}
	all := append(slices.Repeat([]Command{set(1, 0)}, 3000), set(1, unix.IFF_UP))
	if err := c.Do(all...); err != nil {
		t.Fatal(err)
	}
	all[100], all[2500] = set(1000, 0), set(2000, 0)
	if err := c.Do(all...); !errors.Is(err, unix.ENODEV) || !strings.HasPrefix(err.Error(), "set device 1000: ") {
		t.Fatalf("with two devices that are missing: %v", err)
	}
	if out := nstest.Run(t, ns, "ip -br link show lo"); !strings.Contains(out, "LOOPBACK,UP") {
		t.Errorf("the last command was not carried out: %s", out)
	}
	if _, err := c.Each(all...); !errors.Is(err, unix.ENOBUFS) {
		t.Fatalf("all at once: %v", err)
	}
	if err := c.Do(set(1, 0)); err != nil {
		t.Errorf("after lost acknowledgements: %v", err)
	}
}

// Another process of the namespace, with CAP_NET_ADMIN there, cannot answer in the kernel's
// place: not with an acknowledgement or a device, nor with an answer to what was not asked.
func TestForgedAnswers(t *testing.T) {
	ns := nstest.New(t)
	var c *Commands
	var r *Requests
	var s *Socket
	var forger int
	nstest.Do(t, ns, func() {
		var failed [4]error
		c, failed[0] = OpenCommands(unix.NETLINK_ROUTE)
		r, failed[1] = OpenRequests(unix.NETLINK_ROUTE)
		s, failed[2] = Open(Options{Family: unix.NETLINK_ROUTE, Groups: []uint32{unix.RTNLGRP_LINK}})
		forger, failed[3] = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
		if err := errors.Join(failed[:]...); err != nil {
			t.Fatal(err)
		}
	})
	defer c.Close()
	defer r.Close()
	defer s.Close()
	defer unix.Close(forger)
	forge := func(fd int, typ uint16, seq uint32) {
		t.Helper()
		at, err := unix.Getsockname(fd)
		if err == nil && at.(*unix.SockaddrNetlink).Pid == 0 { // it gets one when it sends
			err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		}
		if err == nil {
			at, err = unix.Getsockname(fd)
		}
		if err != nil {
			t.Fatal(err)
		}
		b := binary.NativeEndian.AppendUint32(nil, unix.NLMSG_HDRLEN+32)
		b = binary.NativeEndian.AppendUint16(b, typ)
		b = binary.NativeEndian.AppendUint16(b, 0)
		b = binary.NativeEndian.AppendUint32(b, seq)
		_ = unix.Sendto(forger, append(b, make([]byte, 36)...), 0, at) // refused
	}
	missing := getLink(12345, 0)
	for _, seq := range []uint32{1, 7} { // the first command's; a number that no command has
		forge(c.fd, unix.NLMSG_ERROR, seq)
	}
	if err := c.Do(Command{What: "read a device", Type: missing.Type, Data: missing.Data}); !errors.Is(err, unix.ENODEV) {
		t.Errorf("a command: %v, want the kernel's answer", err)
	}
	forge(r.fd, unix.RTM_NEWLINK, 1)
	if err := r.Request(missing, func(Message) { t.Error("got a forged device") }); !errors.Is(err, unix.ENODEV) {
		t.Errorf("a request: %v, want the kernel's answer", err)
	}
	_ = s.raw.Control(func(fd uintptr) { forge(int(fd), unix.RTM_DELLINK, 0) })
	nstest.Run(t, ns, "ip link add d0 type bridge")
	if err := s.Receive(func(m Message) {
		if m.Type != unix.RTM_NEWLINK {
			t.Errorf("heard a message of type %d, want the kernel's", m.Type)
		}
	}); err != nil {
		t.Error(err)
	}
}

func TestFilterKeepsMessagesOut(t *testing.T) {
	// The type is in host order; the filter reads it as if from the network.
	del := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.RTM_DELLINK))
	l, ns := listen(t, Options{Buffer: 1 << 20, Filter: []bpf.Instruction{
		bpf.LoadAbsolute{Off: 4, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(del), SkipFalse: 1},
		bpf.RetConstant{Val: 1 << 20},
		bpf.RetConstant{Val: 0},
	}})
	nstest.Run(t, ns, "ip link add d0 type bridge")
	nstest.Run(t, ns, "ip link del d0")
	err := l.Receive(func(m Message) {
		if m.Type != unix.RTM_DELLINK {
			t.Errorf("message %d came through", m.Type)
		}
	})
	if err != nil {
		t.Error(err)
	}
}

func TestOverrunThenOn(t *testing.T) {
	l, ns := listen(t, Options{Buffer: 4 << 10})
	for i := range 20 {
		nstest.Run(t, ns, fmt.Sprint("ip link set lo mtu ", 1000+i))
	}
	var mtus []uint32
	receive := func() error {
		return l.Receive(func(m Message) {
			for typ, data := range Attributes(m.Data[unix.SizeofIfInfomsg:]) {
				if typ == unix.IFLA_MTU {
					mtus = append(mtus, binary.NativeEndian.Uint32(data))
				}
			}
		})
	}
	if err := receive(); !errors.Is(err, ErrOverrun) {
		t.Fatalf("Receive = %v, want ErrOverrun", err)
	}
	nstest.Run(t, ns, "ip link set lo mtu 2000")
	if err := receive(); err != nil || len(mtus) != 1 || mtus[0] != 2000 {
		t.Errorf("after the overrun: %v, MTUs %v, want 2000 alone", err, mtus)
	}
}

func TestCloseEndsReceive(t *testing.T) {
	l, _ := listen(t, Options{Buffer: 1 << 20})
	done := make(chan error)
	go func() { done <- l.Receive(func(Message) {}) }()
	l.Close()
	select {
	case err := <-done:
		if err == nil || errors.Is(err, ErrOverrun) {
			t.Errorf("Receive = %v after Close", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("Receive waits on after Close")
	}
}

func TestReceiveDoesNotAllocate(t *testing.T) {
	l, ns := listen(t, Options{Buffer: 4 << 20})
	const rounds = 50
	for i := range rounds + 1 { // AllocsPerRun warms up once
		nstest.Run(t, ns, fmt.Sprint("ip link set lo mtu ", 1000+i))
	}
	fn := func(m Message) {
		for range Attributes(m.Data[unix.SizeofIfInfomsg:]) {
		}
	}
	if n := testing.AllocsPerRun(rounds, func() {
		if err := l.Receive(fn); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per message", n)
	}
}
