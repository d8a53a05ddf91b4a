package peer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
)

// Main is the main function of a peer process: it executes the orders that it reads
// from in, one after the other, and writes the answers to out. When in ends, the
// process exits at once, also during an order, so that no peer outlives its bench.
func Main(in io.Reader, out io.Writer) {
	// A thread in a raw system call keeps its processor slot, and a garbage
	// collection would wait for it.
	runtime.GOMAXPROCS(4)
	debug.SetGCPercent(-1)

	orders := make(chan order)
	go func() {
		runtime.LockOSThread() // the thread that orders pin to a CPU
		answers := json.NewEncoder(out)
		for o := range orders {
			if err := carryOut(o, answers); err != nil {
				answers.Encode(answer{Error: err.Error()})
			}
		}
	}()
	decoder := json.NewDecoder(in)
	for {
		var o order
		if err := decoder.Decode(&o); err != nil {
			if errors.Is(err, io.EOF) {
				os.Exit(0)
			}
			fmt.Fprintln(os.Stderr, "read an order:", err)
			os.Exit(1)
		}
		orders <- o
	}
}

func carryOut(o order, answers *json.Encoder) error {
	if err := o.Spec.check(); err != nil {
		return err
	}
	var report Report
	var err error
	switch o.Role {
	case serve:
		report, err = runServer(o.Spec, func(port uint16) error {
			return answers.Encode(answer{Port: port})
		})
	case drive:
		report, err = runDriver(o.Spec)
	default:
		err = fmt.Errorf("role %q is unknown", o.Role)
	}
	if err != nil {
		return err
	}
	return answers.Encode(answer{Report: &report})
}

// runServer serves one run. It calls listening with the port once a driver may
// connect.
func runServer(spec Spec, listening func(port uint16) error) (Report, error) {
	if err := pin(spec.ServerCPU); err != nil {
		return Report{}, err
	}
	s, port, err := listen(spec.Proto, spec.Address.Addr())
	if err != nil {
		return Report{}, err
	}
	defer s.close()
	if err := listening(port); err != nil {
		return Report{}, err
	}
	switch {
	case spec.Pattern == Connections:
		return serveConnections(s, spec)
	case spec.Proto == "udp" && spec.Pattern == Stream:
		return serveUDPStream(s, spec)
	case spec.Proto == "udp":
		return serveUDPRequests(s, spec)
	}
	connection, err := s.accept()
	if err != nil {
		return Report{}, err
	}
	defer connection.close()
	switch spec.Pattern {
	case Stream:
		return serveTCPStream(connection, spec)
	case Flows:
		return serveFlows(connection, spec)
	default:
		return serveTCPRequests(connection, spec)
	}
}

// runDriver drives one run.
func runDriver(spec Spec) (Report, error) {
	if err := pin(spec.DriverCPU); err != nil {
		return Report{}, err
	}
	if spec.Pattern == Connections {
		return driveConnections(spec)
	}
	s, err := dial(spec.Proto, spec.Address)
	if err != nil {
		return Report{}, err
	}
	defer s.close()
	switch {
	case spec.Pattern == RequestResponse:
		return driveRequests(s, spec)
	case spec.Pattern == Flows:
		return driveFlows(s, spec)
	case spec.Proto == "udp":
		return driveUDPStream(s, spec)
	default:
		return driveTCPStream(s, spec)
	}
}
