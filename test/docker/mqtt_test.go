package docker

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// In TestMQTTPublisher a publisher in a container sends messages to an MQTT broker
// outside over one connection, and a subscriber outside receives all of them in order.
func TestMQTTPublisher(t *testing.T) {
	const messages = 4000
	e := Start(t)
	e.Import(t, Image{Name: "mosquitto", Programs: []string{"mosquitto_pub"}})
	startBroker(t, e)
	sensor := e.Run(t, Spec{Name: "sensor", Image: "mosquitto", Command: []string{"sleep", "600"}})
	withoutAndWith(t, e.Machine, func(t *testing.T, s *SCON) {
		s.waitHooked(t, "sensor")
		lines := subscribe(t, e, t.Name())
		publish := startPublisher(t, sensor, t.Name())
		conn := to("sensor", "tcp", 1883)
		publishOne := func() {
			publish("nudge")
			receive(t, lines, "nudge")
		}
		s.waitExpress(t, conn, publishOne)
		s.wantExpress(t, conn, func() (carried [2]uint64) {
			go func() {
				for i := range messages {
					publish(fmt.Sprintf("message %d", i))
				}
			}()
			for i := range messages {
				message := fmt.Sprintf("message %d", i)
				receive(t, lines, message)
				carried[0] += uint64(len(message) + len(t.Name()))
				carried[1] += 4 // a PUBACK
			}
			return carried
		})
	})
}

// startBroker starts mosquitto at the edge and waits until it listens.
func startBroker(t *testing.T, e *Engine) {
	t.Helper()
	conf := filepath.Join(t.TempDir(), "mosquitto.conf")
	// Unbounded queues, so that only the network can lose messages. As root, since
	// mosquitto's unprivileged user could not read its folder here.
	text := "listener 1883 " + edgeAddr + "\nallow_anonymous true\nmax_queued_messages 0\nuser root\n"
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	background(t, e.EdgeCommand("mosquitto", "-c", conf))
	eventually(t, "start of the broker", func() error {
		conn, err := e.DialEdge("tcp4", edgeAddr+":1883")
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// subscribe starts a subscriber at the edge and returns its messages. It
// returns after the subscription.
func subscribe(t *testing.T, e *Engine, topic string) <-chan string {
	t.Helper()
	r, w := io.Pipe()
	t.Cleanup(func() { r.Close() })
	cmd := e.EdgeCommand("mosquitto_sub", "-h", edgeAddr, "-q", "1", "-t", topic)
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go cmd.Wait() // ends with the machine
	lines := make(chan string, 1<<13)
	go func() {
		for in := bufio.NewScanner(r); in.Scan(); {
			lines <- in.Text()
		}
	}()
	eventually(t, "subscription", func() error {
		output(t, e.EdgeCommand("mosquitto_pub", "-h", edgeAddr, "-t", topic, "-m", "hello"))
		select {
		case <-lines:
			return nil
		case <-time.After(100 * time.Millisecond):
			return fmt.Errorf("nothing received")
		}
	})
	return lines
}

// startPublisher starts a publisher in a container, and returns a function that
// publishes one message. All go through one connection, with QoS 1.
func startPublisher(t *testing.T, c *Container, topic string) func(message string) {
	t.Helper()
	cmd := c.engine.Command("docker", c.Exec("mosquitto_pub", "-h", edgeAddr, "-q", "1", "-t", topic, "-l")...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	background(t, cmd)
	t.Cleanup(func() { stdin.Close() })
	return func(message string) {
		if _, err := fmt.Fprintln(stdin, message); err != nil {
			t.Errorf("publish: %v", err)
		}
	}
}

// receive takes the next message, which must be the expected one.
func receive(t *testing.T, lines <-chan string, want string) {
	t.Helper()
	select {
	case got := <-lines:
		if got != want {
			t.Fatalf("received %q, want %q", got, want)
		}
	case <-time.After(patience):
		t.Fatalf("message %q did not arrive", want)
	}
}
