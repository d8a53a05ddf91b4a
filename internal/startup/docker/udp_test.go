package docker

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/nstest"
)

// A peer that sends to a UDP port all the time reaches the container that has it now, whoever had
// it when the first packet came: nobody, or another container.
func TestMovedUDPPort(t *testing.T) {
	const zones = "nft add table t\nnft add chain t c {type filter hook prerouting priority -310;}\nnft add rule t c ct "
	for name, c := range map[string]struct{ host, addr string }{
		"":                          {"ip link set lo up", "192.0.2.2:5353"},
		"an address of no device":   {"ip route add local 192.0.2.128/25 dev lo", "192.0.2.200:5353"},
		"a zone of conntrack":       {zones + "zone set 7", "192.0.2.2:5353"},
		"a zone of one direction's": {zones + "original zone set 7", "192.0.2.2:5353"},
	} {
		t.Run(name, func(t *testing.T) { testMovedUDPPort(t, c.host, c.addr) })
	}
}

func testMovedUDPPort(t *testing.T, host, addr string) {
	w := newWorld(t)
	nstest.Run(t, w.host, host)
	w.do(func() error { return w.driver.CreateNetwork(request(netID, "172.30.0.0/24", "172.30.0.1/24", nil)) })
	var peer net.Conn
	if err := netns.Do(w.outside, func() (err error) { peer, err = net.Dial("udp4", addr); return err }); err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	answer := make([]byte, 16)
	ask := func() string {
		_ = peer.SetDeadline(time.Now().Add(100 * time.Millisecond))
		if _, err := peer.Write([]byte("?")); err != nil {
			return ""
		}
		n, _ := peer.Read(answer)
		return string(answer[:n])
	}
	ask()
	for i, name := range []string{"aaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbb"} {
		binding := map[string]any{"Proto": unix.IPPROTO_UDP, "Port": 53, "HostPort": 5353, "HostPortEnd": 5353}
		ns := w.run(netID, name, fmt.Sprintf("172.30.0.%d", 2+i), binding)
		var l net.PacketConn
		if err := netns.Do(ns, func() (err error) { l, err = net.ListenPacket("udp4", ":53"); return err }); err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			for b := make([]byte, 16); ; {
				_, from, err := l.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = l.WriteTo([]byte(name[:1]), from)
			}
		}()
		for end := time.Now().Add(10 * time.Second); ask() != name[:1]; {
			if time.Now().After(end) {
				t.Fatalf("the peer does not reach container %s", name[:1])
			}
		}
		w.do(func() error {
			err := w.driver.Leave(&endpointRequest{NetworkID: netID, EndpointID: name})
			return errors.Join(err, w.driver.DeleteEndpoint(&endpointRequest{NetworkID: netID, EndpointID: name}))
		})
		for range 3 {
			ask()
		}
	}
}
