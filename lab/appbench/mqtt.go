package appbench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/machine"
)

// messageSize of MQTT messages, in bytes, as in the paper's Fig. 9.
const messageSize = 64

// publish sends messages from the edge, each by a connection of its own: a device that wakes
// up, reports and sleeps. A message that the broker does not acknowledge is an error.
func (b *bed) publish(ctx context.Context, port int, _ load) (r report, err error) {
	message, err := newMessage()
	if err != nil {
		return r, err
	}
	to := &unix.SockaddrInet4{Port: port, Addr: netip.MustParseAddr(machine.HostAddr).As4()}
	err = netns.Do(b.machine.Edge(), func() error { // its thread does nothing else
		var before, one unix.CPUSet
		if err := unix.SchedGetaffinity(0, &before); err != nil {
			return fmt.Errorf("sched_getaffinity: %w", err)
		}
		one.Set(b.cpu)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			return fmt.Errorf("sched_setaffinity: %w", err)
		}
		defer unix.SchedSetaffinity(0, &before)
		var took []time.Duration
		begin, last := time.Now(), time.Now()
		for last.Sub(begin) < time.Duration(b.seconds)*time.Second && ctx.Err() == nil {
			if err := message.send(to); err != nil {
				return err
			}
			now := time.Now()
			took, last = append(took, now.Sub(last)), now
		}
		if len(took) == 0 {
			return ctx.Err()
		}
		slices.Sort(took)
		us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
		r = report{float64(len(took)) / last.Sub(begin).Seconds(), us(took[len(took)/2]), us(took[len(took)*99/100])}
		return ctx.Err()
	})
	return r, err
}

// message is what the publisher of one message sends.
type message struct{ connect, publish, disconnect []byte }

// newMessage encodes a connection's packets of MQTT 5; the message has QoS 1.
func newMessage() (m message, err error) {
	const id = 1
	qos1 := &packets.Publish{Topic: "scon", QoS: 1, PacketID: id, Properties: &packets.Properties{}, Payload: make([]byte, messageSize)}
	for _, p := range []struct {
		to      *[]byte
		content packets.Packet
	}{
		{&m.connect, &packets.Connect{ProtocolName: "MQTT", ProtocolVersion: 5, ClientID: "sensor", CleanStart: true, KeepAlive: 60, Properties: &packets.Properties{}}},
		{&m.publish, qos1},
		{&m.disconnect, &packets.Disconnect{Properties: &packets.Properties{}}},
	} {
		var out bytes.Buffer
		if _, err := p.content.WriteTo(&out); err != nil {
			return m, fmt.Errorf("encode a packet of MQTT: %w", err)
		}
		*p.to = out.Bytes()
	}
	return m, nil
}

// send connects, sends the message, waits for its acknowledgment, and closes.
func (m message) send(to *unix.SockaddrInet4) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	timeout := unix.NsecToTimeval(int64(patience))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return fmt.Errorf("set a time limit: %w", err)
	}
	if err := unix.Connect(fd, to); err != nil {
		return fmt.Errorf("connect to the broker: %w", err)
	}
	for _, step := range []struct {
		say    []byte
		answer byte
	}{{m.connect, packets.CONNACK}, {m.publish, packets.PUBACK}} {
		if _, err := unix.Write(fd, step.say); err != nil {
			return fmt.Errorf("write to the broker: %w", err)
		}
		answer, err := packets.ReadPacket(descriptor(fd))
		if err != nil {
			return fmt.Errorf("read from the broker: %w", err)
		}
		if answer.Type != step.answer {
			return fmt.Errorf("the broker answers a packet of type %d, want %d", answer.Type, step.answer)
		}
	}
	if _, err := unix.Write(fd, m.disconnect); err != nil {
		return fmt.Errorf("write to the broker: %w", err)
	}
	return nil
}

// descriptor reads from a socket that blocks, without Go's poller.
type descriptor int

func (d descriptor) Read(p []byte) (int, error) {
	for {
		switch n, err := unix.Read(int(d), p); {
		case err == unix.EINTR: // Go's scheduler
		case n == 0 && err == nil:
			return 0, io.EOF
		default:
			return max(n, 0), err
		}
	}
}
