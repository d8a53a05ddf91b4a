package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// servePublicly serves metrics and probes at addresses of their own.
func servePublicly(t *testing.T, write func(io.Writer) error) (scraped, probed string) {
	ctx, stop := context.WithCancel(context.Background())
	log := slog.New(slog.DiscardHandler)
	ended := make(chan error, 2)
	listen := func(serve func(net.Listener) error) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() { ended <- serve(l) }()
		return l.Addr().String()
	}
	scraped = listen(func(l net.Listener) error { return ServeMetrics(ctx, l, write, log) })
	fine := func() error { return nil }
	probed = listen(func(l net.Listener) error { return ServeProbes(ctx, l, Probes{Healthy: fine, Ready: fine}, log) })
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-ended, <-ended); err != nil {
			t.Error(err)
		}
	})
	return scraped, probed
}

func ask(address, path, host string) (code int, err error) {
	r, err := http.NewRequest(http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return 0, err
	}
	r.Host = host
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// Connections that one process leaves open keep nobody from an answer, whatever it has sent
// on them: nothing, a part of a request, or requests whose answers it does not read.
func TestConnectionsLeftOpen(t *testing.T) {
	large := strings.Repeat("# a line of a page that fills all buffers between two processes\n", 1<<16)
	scraped, probed := servePublicly(t, func(w io.Writer) error {
		_, err := io.WriteString(w, large)
		return err
	})
	for _, sent := range []string{"", "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n", "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"} {
		t.Run(fmt.Sprintf("%.12q", sent), func(t *testing.T) {
			for range 3 * mostOpen {
				for _, address := range []string{scraped, probed} {
					c, err := net.Dial("tcp", address)
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close()
					_, _ = io.WriteString(c, sent) // it may have made room already
				}
			}
			if code, err := ask(probed, HealthyPath, probed); code != http.StatusOK {
				t.Errorf("%s: %d, %v", HealthyPath, code, err)
			}
			if code, err := ask(scraped, MetricsPath, scraped); code != http.StatusOK {
				t.Errorf("%s: %d, %v", MetricsPath, code, err)
			}
		})
	}
}

// The connection that makes room is one of the peer that has the most.
func TestRoomIsMadeByPeer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := NewPublic(l)
	dial := func(from string) (client, server net.Conn) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		client, err := d.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		if server, err = p.Accept(); err != nil {
			t.Fatal(err)
		}
		return client, server
	}
	quiet, _ := dial("127.0.0.2") // the oldest of all
	_, busy := dial("127.0.0.3")
	p.Asked(busy)
	for range 2 * mostOpen {
		dial("127.0.0.3")
	}
	if err := quiet.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := quiet.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection of another peer: %v", err)
	}
	if !p.open[busy.(*caller)] {
		t.Error("a connection whose request is being answered made room before idle ones")
	}
	if len(p.open) != mostOpen {
		t.Errorf("%d connections are open, want %d", len(p.open), mostOpen)
	}
}

// A page of another site, whose name leads here, reads nothing.
func TestPublicHost(t *testing.T) {
	scraped, probed := servePublicly(t, func(io.Writer) error { return nil })
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]int{
		"": 200, "127.0.0.1": 200, "127.0.0.1:9477": 200, "[::1]:9477": 200, "192.0.2.1": 200, "localhost:1": 200,
		own: 200, strings.ToUpper(own) + ":9477": 200,
		"attacker.example": 403, "attacker.example:9477": 403, "127.0.0.1.attacker.example": 403, own + ".attacker.example": 403,
	} {
		for at, path := range map[string]string{scraped: MetricsPath, probed: HealthyPath} {
			if code, err := ask(at, path, host); code != want {
				t.Errorf("%s, Host %q: %d, want %d (%v)", path, host, code, want, err)
			}
		}
	}
}
