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

// victim is who is killed while bytes go.
type victim int

const (
	receiver victim = iota
	sender
	brokerAndSender // the broker, and a moment later the sender
	brokerAlone
)

const (
	kills = 24
	// killAfter is the longest that bytes go until somebody is killed.
	killAfter = 20 * time.Millisecond
)

// victims of a mode, in turn. Only connections of some engines end with the broker.
func (m mode) victims() []victim {
	switch {
	case m.way == "bpf" || m.way == "copier":
		return []victim{receiver, sender, brokerAlone}
	case m.run:
		return []victim{receiver, sender, brokerAndSender}
	}
	return []victim{receiver, sender}
}

// takeDeaths measures how long it takes from when a process is killed until its
// peer has an error or the end.
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

// death kills somebody, and returns how long the peer took to hear of it.
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
		return 0, fmt.Errorf("the connection ended %v before somebody was killed", -took)
	}
	return took, nil
}

// monotonic is the clock that the programs look at.
func monotonic() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return time.Duration(t.Nano()), nil
}
