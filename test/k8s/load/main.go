// Load is what the pods of a test's cluster run.
//
//	load pause                      sleep until SIGTERM: the sandbox of a pod
//	load serve PORT                 echo TCP and UDP
//	load stream HOST:PORT SECONDS   send bytes over one TCP connection and numbered
//	                                datagrams over one UDP socket; print what came back
package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
)

func main() {
	verb := append(os.Args[1:], "", "", "")
	var err error
	switch verb[0] {
	case "pause":
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
		<-stop
	case "serve":
		err = serve(":" + verb[1])
	case "stream":
		var seconds float64
		if seconds, err = strconv.ParseFloat(verb[2], 64); err == nil {
			err = stream(verb[1], time.Duration(seconds*float64(time.Second)))
		}
	default:
		err = fmt.Errorf("usage: load pause | serve PORT | stream HOST:PORT SECONDS")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func serve(addr string) error {
	udp, err := net.ListenPacket("udp", addr)
	if err != nil {
		return err
	}
	go func() {
		b := make([]byte, 2048)
		for {
			n, from, err := udp.ReadFrom(b)
			if err == nil {
				_, _ = udp.WriteTo(b[:n], from)
			}
		}
	}()
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	for {
		conn, err := tcp.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn)
		}()
	}
}

// stream prints "tcp BYTES back BYTES wrong BYTES udp DATAGRAMS lost DATAGRAMS".
func stream(addr string, whole time.Duration) error {
	end := time.Now().Add(whole)
	var wg sync.WaitGroup
	var sent, back, wrong, datagrams, answered uint64
	var errTCP, errUDP error
	wg.Go(func() { sent, back, wrong, errTCP = bulk(addr, end) })
	wg.Go(func() { datagrams, answered, errUDP = numbered(addr, end) })
	wg.Wait()
	fmt.Printf("tcp %d back %d wrong %d udp %d lost %d\n", sent, back, wrong, datagrams, datagrams-answered)
	if errTCP != nil {
		return errTCP
	}
	return errUDP
}

const piece = 16 << 10

// pattern fills b with what belongs at an offset of the stream.
func pattern(b []byte, offset uint64) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], offset+uint64(i))
	}
}

// bulk sends bytes until end, at most a piece each millisecond, and compares what comes back.
func bulk(addr string, end time.Time) (sent, back, wrong uint64, err error) {
	conn, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		return 0, 0, 0, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(end.Add(20 * time.Second))
	read := make(chan error, 1)
	go func() {
		got, want := make([]byte, piece), make([]byte, piece)
		for {
			_, err := io.ReadFull(conn, got)
			if err == io.EOF {
				err = nil
				read <- err
				return
			}
			if err != nil {
				read <- err
				return
			}
			if pattern(want, back); !bytes.Equal(got, want) {
				wrong += piece
			}
			back += piece
		}
	}()
	b := make([]byte, piece)
	for time.Now().Before(end) {
		pattern(b, sent)
		if _, err := conn.Write(b); err != nil {
			return sent, back, wrong, err
		}
		sent += piece
		time.Sleep(time.Millisecond)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return sent, back, wrong, err
	}
	err = <-read
	return sent, back, wrong, err
}

// numbered sends a datagram each 5 ms, and counts the different ones that come back.
func numbered(addr string, end time.Time) (sent, answered uint64, err error) {
	conn, err := net.Dial("udp", addr)
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	seen, begin := make(map[uint64]bool), time.Now()
	var times []time.Duration // of the datagrams
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 64)
		_ = conn.SetReadDeadline(end.Add(2 * time.Second))
		for {
			n, err := conn.Read(b)
			if err != nil {
				return
			}
			if n == 8 {
				seen[binary.LittleEndian.Uint64(b)] = true
			}
		}
	}()
	for time.Now().Before(end) {
		if _, err := conn.Write(binary.LittleEndian.AppendUint64(nil, sent)); err != nil {
			return sent, 0, err
		}
		sent++
		times = append(times, time.Since(begin))
		time.Sleep(5 * time.Millisecond)
	}
	<-done
	for n := range sent {
		if !seen[n] {
			fmt.Fprintf(os.Stderr, "load: datagram %d, sent after %v, is lost\n", n, times[n].Round(time.Millisecond))
		}
	}
	return sent, uint64(len(seen)), nil
}
