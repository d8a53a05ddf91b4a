package docker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
)

// nginxConf serves /www on port 80 with sendfile(2) and on port 81 without: packets
// then have pages of the page cache or copies.
const nginxConf = `daemon off;
worker_processes 1;
error_log stderr;
pid /run/nginx.pid;
events { worker_connections 512; }
http {
	access_log off;
	keepalive_requests 100000;
	root /www;
	server { listen 80; sendfile on; }
	server { listen 81; sendfile off; }
}
`

// RunNginx starts a web server for a folder of this machine and publishes
// ports 8080 with and 8081 without sendfile.
func (e *Engine) RunNginx(t *testing.T, name, folder string, options ...string) *Container {
	t.Helper()
	e.Import(t, Image{
		Name:     "nginx",
		Programs: []string{"nginx"},
		Files:    map[string]string{"etc/nginx/nginx.conf": nginxConf},
	})
	c := e.Run(t, Spec{
		Name:  name,
		Image: "nginx",
		Options: append([]string{
			"--publish", "8080:80", "--publish", "8081:81", "--volume", folder + ":/www:ro",
		}, options...),
		Command: []string{"nginx"},
	})
	c.waitListening(t, 80)
	return c
}

// TestHTTPThroughPublishedPort fetches small pages and a large file over one
// kept-alive connection from outside.
func TestHTTPThroughPublishedPort(t *testing.T) {
	e := Start(t)
	folder := t.TempDir()
	small, big := writePage(t, folder, "small", 1<<10), writePage(t, folder, "big", 20<<20)
	e.RunNginx(t, "web", folder)
	withoutAndWith(t, e.Machine, func(t *testing.T, s *SCON) {
		s.waitHooked(t, "web")
		for _, tc := range []struct {
			name string
			port int
		}{{"sendfile", 8080}, {"copy", 8081}} {
			t.Run(tc.name, func(t *testing.T) {
				c := newClient(t, e, tc.port)
				c.get(t, "small", small)
				conn := from("web", "tcp", c.port())
				s.waitExpress(t, conn, func() { c.get(t, "small", small) })
				t.Run("500 pages", func(t *testing.T) {
					s.wantExpress(t, conn, func() [2]uint64 {
						return c.carried(func() {
							for range 500 {
								c.get(t, "small", small)
							}
						})
					})
				})
				t.Run("20 MB file", func(t *testing.T) {
					s.wantExpress(t, conn, func() [2]uint64 {
						return c.carried(func() { c.get(t, "big", big) })
					})
				})
				if n := c.dials.Load(); n != 1 {
					t.Errorf("the client made %d connections, want 1", n)
				}
			})
		}
	})
}

// writePage writes a file of random bytes and returns its checksum.
func writePage(t *testing.T, folder, name string, size int) [sha256.Size]byte {
	t.Helper()
	contents := make([]byte, size)
	_, _ = random().Read(contents) // never fails
	if err := os.WriteFile(filepath.Join(folder, name), contents, 0o644); err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(contents)
}

// client is an HTTP client at the edge.
type client struct {
	http  http.Client
	base  string
	conn  atomic.Pointer[countedConn] // the latest connection
	dials atomic.Int32
}

// newClient returns a client of a published port. It keeps its connection.
func newClient(t *testing.T, e *Engine, port int) *client {
	t.Helper()
	c := &client{base: fmt.Sprintf("http://%s:%d/", hostAddr, port)}
	transport := &http.Transport{
		DisableCompression: true,
		DialContext: func(_ context.Context, network, addr string) (net.Conn, error) {
			conn, err := e.DialEdge(network, addr)
			if err != nil {
				return nil, err
			}
			c.dials.Add(1)
			counted := &countedConn{Conn: conn}
			c.conn.Store(counted)
			return counted, nil
		},
	}
	c.http = http.Client{Transport: transport, Timeout: patience}
	t.Cleanup(transport.CloseIdleConnections)
	return c
}

// fetch reads a page completely.
func (c *client) fetch(name string) ([]byte, error) {
	resp, err := c.http.Get(c.base + name)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var body bytes.Buffer
	if _, err := io.Copy(&body, resp.Body); err != nil {
		return nil, fmt.Errorf("get %s: %w", name, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get %s: %s", name, resp.Status)
	}
	return body.Bytes(), nil
}

// get reads a page and compares its checksum.
func (c *client) get(t *testing.T, name string, sum [sha256.Size]byte) {
	t.Helper()
	body, err := c.fetch(name)
	if err != nil {
		t.Fatal(err)
	}
	if sha256.Sum256(body) != sum {
		t.Fatalf("get %s: %d bytes that differ from the file", name, len(body))
	}
}

// port returns the edge's port of the connection.
func (c *client) port() uint16 { return localPort(c.conn.Load()) }

// carried returns the bytes that traffic sent and received.
func (c *client) carried(traffic func()) [2]uint64 {
	conn := c.conn.Load()
	sent, received := conn.sent.Load(), conn.received.Load()
	traffic()
	return [2]uint64{conn.sent.Load() - sent, conn.received.Load() - received}
}

// countedConn counts the bytes of a connection.
type countedConn struct {
	net.Conn
	sent, received atomic.Uint64
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.received.Add(uint64(n))
	return n, err
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.sent.Add(uint64(n))
	return n, err
}
