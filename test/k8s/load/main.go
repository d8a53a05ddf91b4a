// Load is what the pods of a test's cluster run.
//
//	load pause               sleep until SIGTERM: the sandbox of a pod
//	load serve PORT          echo TCP and UDP; tell its name at the next port
//	load stream HOST:PORT    send bytes over one TCP connection and numbered datagrams
//	                         over one UDP socket until its input ends, for ten minutes
//	                         at most; print what came back
//	load ask HOST:PORT N     ask N connections often for the server's name; print how
//	                         many were told which
package main

import (
	"bufio"
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
		var port int
		if port, err = strconv.Atoi(verb[1]); err == nil {
			err = serve(port)
		}
	case "stream":
		err = stream(verb[1])
	case "ask":
		var connections int
		if connections, err = strconv.Atoi(verb[2]); err == nil {
			err = ask(verb[1], connections)
		}
	default:
		err = fmt.Errorf("usage: load pause | serve PORT | stream HOST:PORT | ask HOST:PORT N")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func serve(port int) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	udp, err := net.ListenPacket("udp", fmt.Sprintf(":%d", port))
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
	ended := make(chan error)
	go func() { ended <- accept(port, func(conn net.Conn) { _, _ = io.Copy(conn, conn) }) }()
	go func() {
		ended <- accept(port+1, func(conn net.Conn) {
			for lines := bufio.NewScanner(conn); lines.Scan(); {
				fmt.Fprintln(conn, name)
			}
		})
	}()
	return <-ended
}

// accept serves each connection to a port.
func accept(port int, serve func(net.Conn)) error {
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			serve(conn)
		}()
	}
}

// ask prints lines "NAME CONNECTIONS". A connection that is told two names is an error.
func ask(addr string, connections int) error {
	told := make(map[string]int)
	for range connections {
		name, err := askOne(addr)
		if err != nil {
			return err
		}
		told[name]++
	}
	for name, n := range told {
		fmt.Println(name, n)
	}
	return nil
}

func askOne(addr string) (name string, err error) {
	conn, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	lines := bufio.NewScanner(conn)
	for range 20 {
		if _, err := conn.Write([]byte("who\n")); err != nil {
			return "", err
		}
		if !lines.Scan() {
			return "", fmt.Errorf("no answer: %v", lines.Err())
		}
		if name != "" && lines.Text() != name {
			return "", fmt.Errorf("one connection is with %s and %s", name, lines.Text())
		}
		name = lines.Text()
	}
	return name, nil
}

// stream prints "tcp BYTES back BYTES wrong BYTES udp DATAGRAMS lost DATAGRAMS".
func stream(addr string) error {
	stop := make(chan struct{})
	end := sync.OnceFunc(func() { close(stop) })
	time.AfterFunc(10*time.Minute, end)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		end()
	}()
	var wg sync.WaitGroup
	var sent, back, wrong, datagrams, answered uint64
	var errTCP, errUDP error
	wg.Go(func() { sent, back, wrong, errTCP = bulk(addr, stop) })
	wg.Go(func() { datagrams, answered, errUDP = numbered(addr, stop) })
	wg.Wait()
	fmt.Printf("tcp %d back %d wrong %d udp %d lost %d\n", sent, back, wrong, datagrams, datagrams-answered)
	if errTCP != nil {
		return errTCP
	}
	return errUDP
}

// each calls f every interval until stop or an error.
func each(interval time.Duration, stop chan struct{}, f func() error) error {
	for {
		select {
		case <-stop:
			return nil
		case <-time.After(interval):
			if err := f(); err != nil {
				return err
			}
		}
	}
}

const piece = 16 << 10

// drain is how long what was sent last may take to come back.
const drain = 20 * time.Second

// pattern fills b with what belongs at an offset of the stream.
func pattern(b []byte, offset uint64) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], offset+uint64(i))
	}
}

// bulk sends bytes until stop, at most a piece each millisecond, and compares what comes back.
func bulk(addr string, stop chan struct{}) (sent, back, wrong uint64, err error) {
	conn, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		return 0, 0, 0, err
	}
	defer conn.Close()
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
	err = each(time.Millisecond, stop, func() error {
		pattern(b, sent)
		_ = conn.SetWriteDeadline(time.Now().Add(drain))
		_, err := conn.Write(b)
		sent += piece
		return err
	})
	if err != nil {
		return sent, back, wrong, err
	}
	_ = conn.SetReadDeadline(time.Now().Add(drain))
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return sent, back, wrong, err
	}
	err = <-read
	return sent, back, wrong, err
}

// numbered sends a datagram each 5 ms, and counts the different ones that come back.
func numbered(addr string, stop chan struct{}) (sent, answered uint64, err error) {
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
	err = each(5*time.Millisecond, stop, func() error {
		_, err := conn.Write(binary.LittleEndian.AppendUint64(nil, sent))
		sent++
		times = append(times, time.Since(begin))
		return err
	})
	_ = conn.SetReadDeadline(time.Now().Add(2 * time.Second))
	<-done
	if err != nil {
		return sent, 0, err
	}
	for n := range sent {
		if !seen[n] {
			fmt.Fprintf(os.Stderr, "load: datagram %d, sent after %v, is lost\n", n, times[n].Round(time.Millisecond))
		}
	}
	return sent, uint64(len(seen)), nil
}
