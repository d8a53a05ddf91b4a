package peer

import (
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/scon-project/scon/internal/host/netns"
)

// Lockstep runs both ends of Spec on the calling thread: each message is received
// at one end before the next is sent. On a single CPU a packet has arrived when its
// send returns, so that neither end sleeps and no other process runs in between.
// The time is therefore that of the packets alone.
//
// It measures Spec.Count messages (Stream), exchanges (RequestResponse) or
// connections, rounded up to whole batches. It ignores Spec.Duration and the CPUs.
// Report.Elapsed is the median of the batches times their number. A lost packet is an
// error.
func Lockstep(serverNetns, driverNetns string, spec Spec) (report Report, err error) {
	if spec.Count < 1 || spec.Size < 1 {
		return Report{}, fmt.Errorf("%d messages of %d bytes: want at least 1 of 1", spec.Count, spec.Size)
	}
	var listener socket
	err = netns.Do(serverNetns, func() (err error) {
		var port uint16
		listener, port, err = listen(spec.Proto, spec.Address.Addr())
		spec.Address = spec.reachAt(port)
		return err
	})
	if err != nil {
		return Report{}, err
	}
	defer listener.close()
	err = netns.Do(driverNetns, func() error {
		report, err = lockstep(listener, spec)
		return err
	})
	return report, err
}

func lockstep(listener socket, spec Spec) (Report, error) {
	message := make([]byte, spec.Size)
	step := func() error { return connectAskClose(listener, spec, message) }
	if spec.Pattern != Connections {
		p, err := openPair(listener, spec, message)
		if err != nil {
			return Report{}, err
		}
		defer p.close()
		step = p.transfer
		if spec.Pattern == RequestResponse {
			step = p.exchange
		}
	}
	return count(spec, step)
}

// count runs step for the messages of spec and times them.
func count(spec Spec, step func() error) (Report, error) {
	for i := range spec.WarmUp {
		if err := step(); err != nil {
			return Report{}, fmt.Errorf("message %d of the warm-up: %w", i, err)
		}
		pause(time.Millisecond)
	}
	runtime.GC() // not during the count
	for range settling {
		if err := step(); err != nil {
			return Report{}, err
		}
	}
	each := max(1, spec.Count/batches)
	var times []time.Duration
	for done := 0; done < spec.Count; done += each {
		start := time.Now()
		for i := range each {
			if err := step(); err != nil {
				return Report{}, fmt.Errorf("message %d: %w", done+i, err)
			}
		}
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	n := uint64(len(times) * each)
	return Report{Messages: n, Total: n, Elapsed: time.Duration(len(times)) * times[len(times)/2]}, nil
}

// batches of equal numbers of messages are timed, and the median counts for all:
// occasional disturbances affect few of them.
const batches = 10

// settling messages follow the warm-up without pauses: the first message after a
// pause takes longer.
const settling = 20

// pair holds both ends of one connection.
type pair struct {
	driver, server socket
	connected      bool // server is an accepted socket, not the listener
	message        []byte
}

// openPair connects the two ends. The first message has arrived when it returns.
func openPair(listener socket, spec Spec, message []byte) (p *pair, err error) {
	p = &pair{server: listener, message: message}
	if p.driver, err = dial(spec.Proto, spec.Address); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if spec.Proto == "tcp" {
		if p.server, err = listener.accept(); err != nil {
			return nil, err
		}
		p.connected = true
	}
	for _, s := range []socket{p.driver, p.server} {
		if err := s.setTimeout(answerTimeout); err != nil {
			return nil, err
		}
	}
	if err := p.driver.send(message); err != nil {
		return nil, err
	}
	if spec.Proto == "udp" {
		if err := p.server.answerOnlyFirst(); err != nil {
			return nil, err
		}
	}
	return p, p.server.receiveAll(message)
}

// close closes the server's end first.
func (p *pair) close() {
	if p.connected {
		p.server.close()
	}
	p.driver.close()
}

func (p *pair) transfer() error {
	if err := p.driver.send(p.message); err != nil {
		return err
	}
	return p.server.receiveAll(p.message)
}

func (p *pair) exchange() error {
	if err := p.transfer(); err != nil {
		return err
	}
	if err := p.server.send(p.message); err != nil {
		return err
	}
	return p.driver.receiveAll(p.message)
}

// connectAskClose runs a whole connection with one exchange. The server closes
// first, like a web server without keep-alive.
func connectAskClose(listener socket, spec Spec, message []byte) error {
	p, err := openPair(listener, spec, message)
	if err != nil {
		return err
	}
	defer p.close()
	if err := p.server.send(message); err != nil {
		return err
	}
	return p.driver.receiveAll(message)
}
