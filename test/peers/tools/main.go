// Traffic of libraries: HTTP by fortio's runner, QUIC, WebRTC's data channels, and TCP over
// several paths (MPTCP).
//
//	traffic http|quic|webrtc|mptcp serve ADDR
//	traffic http|quic|webrtc|mptcp load ADDR
//
// load sends messages and compares what comes back. Its exit status is 0 if all did.
package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"time"

	"fortio.org/fortio/fhttp"
	"fortio.org/fortio/periodic"
	"github.com/pion/webrtc/v4"
	"github.com/quic-go/quic-go"
)

// A load is so many messages of so many bytes.
const (
	messages = 2000
	size     = 4 << 10
)

// limit is the time that a load may take.
const limit = time.Minute

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: traffic http|quic|webrtc|mptcp serve|load ADDR")
	}
	run := map[string]func(addr string) error{
		"http serve": serveHTTP, "http load": loadHTTP,
		"quic serve": serveQUIC, "quic load": loadQUIC,
		"webrtc serve": serveWebRTC, "webrtc load": loadWebRTC,
		"mptcp serve": serveMPTCP, "mptcp load": loadMPTCP,
	}[os.Args[1]+" "+os.Args[2]]
	if run == nil {
		log.Fatalf("unknown: %s %s", os.Args[1], os.Args[2])
	}
	if err := run(os.Args[3]); err != nil {
		log.Fatal(err)
	}
}

// echo sends back all that comes.
func echo(c io.ReadWriteCloser) {
	_, _ = io.Copy(c, c)
	_ = c.Close()
}

// load sends all messages, and compares what comes back.
func load(c io.ReadWriter) error {
	sent := make([]byte, messages*size)
	_, _ = rand.Read(sent)
	failed := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		failed <- err
	}()
	got := make([]byte, len(sent))
	_, err := io.ReadFull(c, got)
	if err := errors.Join(err, <-failed); err != nil {
		return err
	}
	if !bytes.Equal(sent, got) {
		return errors.New("other bytes came back than were sent")
	}
	fmt.Printf("%d messages of %d bytes came back\n", messages, size)
	return nil
}

func serveHTTP(addr string) error {
	return http.ListenAndServe(addr, http.HandlerFunc(fhttp.EchoHandler))
}

func loadHTTP(addr string) error {
	o := fhttp.HTTPRunnerOptions{RunnerOptions: periodic.RunnerOptions{QPS: -1, NumThreads: 8, Exactly: messages}}
	o.URL, o.Payload = "http://"+addr+"/", make([]byte, size)
	r, err := fhttp.RunHTTPTest(&o)
	if err != nil {
		return err
	}
	if ok := r.RetCodes[http.StatusOK]; ok != messages {
		return fmt.Errorf("%d of %d requests were answered: %v", ok, messages, r.RetCodes)
	}
	return nil
}

const protocol = "echo"

func certificate() tls.Certificate {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		log.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, public, private)
	if err != nil {
		log.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}
}

func serveQUIC(addr string) error {
	l, err := quic.ListenAddr(addr, &tls.Config{Certificates: []tls.Certificate{certificate()}, NextProtos: []string{protocol}}, nil)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept(context.Background())
		if err != nil {
			return err
		}
		go func() {
			if s, err := c.AcceptStream(context.Background()); err == nil {
				echo(s)
			}
		}()
	}
}

func loadQUIC(addr string) error {
	ctx, stop := context.WithTimeout(context.Background(), limit)
	defer stop()
	c, err := quic.DialAddr(ctx, addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}}, nil)
	if err != nil {
		return err
	}
	s, err := c.OpenStreamSync(ctx)
	if err != nil {
		return err
	}
	_ = s.SetDeadline(time.Now().Add(limit))
	return errors.Join(load(s), c.CloseWithError(0, ""))
}

// listen listens by MPTCP where the kernel has it.
func listen(addr string, serve func(net.Conn)) error {
	var config net.ListenConfig
	config.SetMultipathTCP(true)
	l, err := config.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go serve(c)
	}
}

func serveMPTCP(addr string) error {
	return listen(addr, func(c net.Conn) { echo(c) })
}

func loadMPTCP(addr string) error {
	d := net.Dialer{Timeout: limit}
	d.SetMultipathTCP(true)
	c, err := d.Dial("tcp", addr)
	if err != nil {
		return err
	}
	if multi, err := c.(*net.TCPConn).MultipathTCP(); err != nil || !multi {
		return fmt.Errorf("the connection is no MPTCP: %v", err)
	}
	_ = c.SetDeadline(time.Now().Add(limit))
	return load(c)
}

// serveWebRTC takes offers by TCP, and answers what comes by data channels.
func serveWebRTC(addr string) error {
	return listen(addr, func(c net.Conn) {
		if err := answer(c); err != nil {
			log.Print(err)
		}
	})
}

func answer(c net.Conn) error {
	p, err := webrtc.NewPeerConnection(webrtc.Configuration{})
	if err != nil {
		return err
	}
	p.OnDataChannel(func(d *webrtc.DataChannel) {
		d.OnMessage(func(m webrtc.DataChannelMessage) { _ = d.Send(m.Data) })
	})
	var offer webrtc.SessionDescription
	if err := json.NewDecoder(c).Decode(&offer); err != nil {
		return err
	}
	if err := p.SetRemoteDescription(offer); err != nil {
		return err
	}
	own, err := p.CreateAnswer(nil)
	if err != nil {
		return err
	}
	return describe(p, own, c)
}

// describe sets a description, and sends it with all addresses.
func describe(p *webrtc.PeerConnection, own webrtc.SessionDescription, to net.Conn) error {
	gathered := webrtc.GatheringCompletePromise(p)
	if err := p.SetLocalDescription(own); err != nil {
		return err
	}
	<-gathered
	return json.NewEncoder(to).Encode(p.LocalDescription())
}

func loadWebRTC(addr string) error {
	c, err := net.DialTimeout("tcp", addr, limit)
	if err != nil {
		return err
	}
	p, err := webrtc.NewPeerConnection(webrtc.Configuration{})
	if err != nil {
		return err
	}
	d, err := p.CreateDataChannel("load", nil)
	if err != nil {
		return err
	}
	message := make([]byte, size)
	_, _ = rand.Read(message)
	done := make(chan error, 1)
	d.OnOpen(func() {
		for range messages {
			if err := d.Send(message); err != nil {
				done <- err
			}
		}
	})
	left := messages
	d.OnMessage(func(m webrtc.DataChannelMessage) {
		if left--; !bytes.Equal(m.Data, message) {
			done <- errors.New("other bytes came back than were sent")
		} else if left == 0 {
			done <- nil
		}
	})
	offer, err := p.CreateOffer(nil)
	if err != nil {
		return err
	}
	if err := describe(p, offer, c); err != nil {
		return err
	}
	var theirs webrtc.SessionDescription
	if err := json.NewDecoder(c).Decode(&theirs); err != nil {
		return err
	}
	if err := p.SetRemoteDescription(theirs); err != nil {
		return err
	}
	select {
	case err := <-done:
		if err == nil {
			fmt.Printf("%d messages of %d bytes came back\n", messages, size)
		}
		return err
	case <-time.After(limit):
		return fmt.Errorf("%d of %d messages did not come back", left, messages)
	}
}
