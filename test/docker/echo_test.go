package docker

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
)

const (
	// echoEnv, if set, makes this test binary the echo server.
	echoEnv  = "SCON_TEST_ECHO"
	echoPort = 7000
)

// RunEcho starts a container that echoes TCP and UDP port 7000, and publishes
// both under the same number. The server is this test binary.
func (e *Engine) RunEcho(t *testing.T, name string, options ...string) *Container {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	e.Import(t, Image{Name: "echo", Programs: []string{self}})
	c := e.Run(t, Spec{
		Name:  name,
		Image: "echo",
		Options: append([]string{
			"--env", echoEnv + "=1",
			"--publish", fmt.Sprintf("%d:%d/tcp", echoPort, echoPort),
			"--publish", fmt.Sprintf("%d:%d/udp", echoPort, echoPort),
		}, options...),
		Command: []string{filepath.Base(self)},
	})
	c.waitListening(t, echoPort)
	return c
}

// serveEcho returns only with an error.
func serveEcho() error {
	udp, err := net.ListenPacket("udp4", fmt.Sprintf(":%d", echoPort))
	if err != nil {
		return err
	}
	tcp, err := net.Listen("tcp4", fmt.Sprintf(":%d", echoPort))
	if err != nil {
		return err
	}
	failed := make(chan error)
	go func() { failed <- echoUDP(udp) }()
	go func() { failed <- echoTCP(tcp) }()
	return <-failed
}

func echoUDP(conn net.PacketConn) error {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return err
		}
		if _, err := conn.WriteTo(buf[:n], from); err != nil {
			return err
		}
	}
}

func echoTCP(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn) // the client notices missing bytes
		}()
	}
}
