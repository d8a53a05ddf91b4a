package pipebench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// victim is the process that is killed during a transfer.
type victim int

const (
	receiver victim = iota
	sender
	brokerAndSender // the broker, and shortly after it the sender
	brokerAlone
)

const (
	kills = 24
	// killAfter is the longest time from the start of the transfer to the kill.
	killAfter = 20 * time.Millisecond
)

// victims returns the victims of a mode, in turn. Only connections of some engines
// end with the broker.
func (m mode) victims() []victim {
	switch {
	case m.transport == "bpf" || m.transport == "copier":
		return []victim{receiver, sender, brokerAlone}
	case m.run:
		return []victim{receiver, sender, brokerAndSender}
	}
	return []victim{receiver, sender}
}

// takeDeaths measures the time from the kill of a process until its peer has an
// error or the end of the stream.
func takeDeaths(ctx context.Context, b *bed, m mode) (map[string]float64, error) {
	if m.bare || m.sockmap {
		return nil, nil
	}
	n := kills
	if b.options.small {
		n = len(m.victims())
	}
	var took []float64
	for i := range n {
		t, err := b.death(ctx, m, m.victims()[i%len(m.victims())])
		if err != nil {
			return nil, err
		}
		took = append(took, t.Seconds()*1e3)
	}
	slices.Sort(took)
	return map[string]float64{"death_p50_ms": took[n/2], "death_max_ms": took[n-1]}, nil
}

// death kills a process and returns the time until its peer noticed.
func (b *bed) death(ctx context.Context, m mode, who victim) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	address, _ := b.address(m, 1)
	from := 2
	if m.alone {
		from = 1
	}
	args := append(load{size: 64 << 10, wait: "usual", connections: 1}.args(), "--until-end")
	server, err := b.start(ctx, m, 1, loadProgram, nil, append([]string{"listen", address, "--cpu", fmt.Sprint(b.listens)}, args...)...)
	if err != nil {
		return 0, err
	}
	defer server.kill()
	if err := server.expect("ready"); err != nil {
		return 0, err
	}
	client, err := b.start(ctx, m, from, loadProgram, nil, append([]string{"connect", address, "--cpu", fmt.Sprint(b.connects)}, args...)...)
	if err != nil {
		return 0, err
	}
	defer client.kill()
	if err := errors.Join(client.expect("going"), server.expect("going")); err != nil {
		return 0, err
	}
	time.Sleep(rand.N(killAfter))
	victim, survivor := client, server
	if who == receiver {
		victim, survivor = server, client
	}
	if who >= brokerAndSender {
		defer func() { err = errors.Join(err, b.startAgain(ctx)) }()
	}
	if who == brokerAndSender {
		b.broker.kill()
		time.Sleep(rand.N(killAfter))
	}
	begun, err := monotonic()
	if err != nil {
		return 0, err
	}
	if who == brokerAlone {
		b.broker.kill()
	} else if err := victim.cmd.Process.Kill(); err != nil {
		return 0, fmt.Errorf("kill %s: %w", victim.name, err)
	}
	var r struct {
		Ended int64 `json:"ended_ns"`
	}
	if err := survivor.end(&r); err != nil {
		return 0, err
	}
	if took = time.Duration(r.Ended) - begun; took < 0 {
		return 0, fmt.Errorf("the connection ended %v before the process was killed", -took)
	}
	return took, nil
}

// monotonic reads the clock that the programs use.
func monotonic() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return time.Duration(t.Nano()), nil
}
