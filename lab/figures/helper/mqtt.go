package helper

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"runtime"
	"time"

	"github.com/eclipse/paho.golang/paho"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/lab/figures"
)

// topic of all messages.
const topic = "scon"

// A message has 64 bytes: its kind, and at clockAt the time at which it was sent.
const (
	messageSize = 64
	clockAt     = 8
)

// Kinds of messages.
const (
	warming = iota
	counted
	last // sent after the counted messages
)

// patience is the time limit for the broker's answers.
const patience = 10 * time.Second

// publish sends messages of QoS 0 at a constant rate, like MQTTLoader.
func publish(order figures.PublishOrder, _ *json.Encoder) (figures.Report, error) {
	runtime.LockOSThread()
	// Wake up on time instead of up to 50 us late.
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return figures.Report{}, fmt.Errorf("set the timer slack: %w", err)
	}
	client, err := connect("publisher", order.Broker, nil)
	if err != nil {
		return figures.Report{}, err
	}
	ctx := context.Background()
	message := make([]byte, messageSize)
	send := func(kind byte) error {
		message[0] = kind
		binary.NativeEndian.PutUint64(message[clockAt:], uint64(clock(unix.CLOCK_MONOTONIC)))
		_, err := client.Publish(ctx, &paho.Publish{Topic: topic, Payload: message})
		return err
	}
	for range order.WarmUp {
		if err := send(warming); err != nil {
			return figures.Report{}, fmt.Errorf("publish: %w", err)
		}
		time.Sleep(time.Millisecond)
	}
	begin := time.Now()
	for i := range order.Before {
		sleepUntil(begin.Add(time.Duration(i+1) * order.Interval))
		if err := send(warming); err != nil {
			return figures.Report{}, fmt.Errorf("publish: %w", err)
		}
	}
	cpu, start := processTime(), time.Now()
	for i := range order.Messages {
		sleepUntil(start.Add(time.Duration(i+1) * order.Interval))
		if err := send(counted); err != nil {
			return figures.Report{}, fmt.Errorf("publish: %w", err)
		}
	}
	report := figures.Report{Messages: order.Messages, Elapsed: time.Since(start), CPU: processTime() - cpu}
	if err := send(last); err != nil {
		return figures.Report{}, fmt.Errorf("publish: %w", err)
	}
	return report, client.Disconnect(&paho.Disconnect{})
}

// sleepUntil sleeps without releasing the thread to Go's scheduler.
func sleepUntil(t time.Time) {
	if d := time.Until(t); d > 0 {
		left := unix.NsecToTimespec(int64(d))
		for unix.Nanosleep(&left, &left) == unix.EINTR {
		}
	}
}

// subscribe measures the time of every counted message from the publisher's call to
// its arrival.
func subscribe(order figures.SubscribeOrder, out *json.Encoder) (figures.Report, error) {
	latencies, done := newLatencies(), make(chan struct{})
	client, err := connect("subscriber", order.Broker, func(message []byte) {
		switch message[0] {
		case counted:
			sent := binary.NativeEndian.Uint64(message[clockAt:])
			latencies.add(clock(unix.CLOCK_MONOTONIC) - time.Duration(sent))
		case last:
			close(done)
		}
	})
	if err != nil {
		return figures.Report{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := client.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: topic}}}); err != nil {
		return figures.Report{}, fmt.Errorf("subscribe: %w", err)
	}
	if err := out.Encode(figures.Report{}); err != nil {
		return figures.Report{}, err
	}
	select {
	case <-done:
	case <-client.Done():
		return figures.Report{}, fmt.Errorf("subscribe: the broker closed the connection")
	}
	return latencies.report(), client.Disconnect(&paho.Disconnect{})
}

// connect connects to the broker with MQTT 5 and calls received with every message.
func connect(name, broker string, received func(message []byte)) (*paho.Client, error) {
	conn, err := net.DialTimeout("tcp4", broker, patience)
	if err != nil {
		return nil, fmt.Errorf("connect to the broker: %w", err)
	}
	client := paho.NewClient(paho.ClientConfig{
		ClientID: name,
		Conn:     conn,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){
			func(p paho.PublishReceived) (bool, error) {
				if received != nil && len(p.Packet.Payload) == messageSize {
					received(p.Packet.Payload)
				}
				return true, nil
			},
		},
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := client.Connect(ctx, &paho.Connect{ClientID: name, CleanStart: true, KeepAlive: 600}); err != nil {
		return nil, fmt.Errorf("connect to the broker: %w", err)
	}
	return client, nil
}
