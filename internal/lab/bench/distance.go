package bench

import (
	"fmt"
	"time"

	"github.com/scon-project/scon/internal/host/cores"
)

// Distance is how far apart two CPUs are: virtual CPUs move between the cores
// and sockets of their host, and with them every figure that needs two of them.
type Distance struct {
	// NS is the median time that a written cache line takes to the other
	// CPU, in nanoseconds.
	NS float64 `json:"ns"`
	// Class is NEAR, FAR or ONE; figures of different classes do not compare.
	Class string `json:"class"`
}

func (d Distance) String() string {
	switch d.Class {
	case "":
		return "not measured"
	case OneCPU:
		return "only one"
	}
	return fmt.Sprintf("%s (%.0f ns)", d.Class, d.NS)
}

// Classes of a Distance, and the bound between them in nanoseconds.
const (
	Near   = "NEAR"
	Far    = "FAR"
	OneCPU = "ONE" // there is only one CPU to run on

	nearBelow = 150
)

// bounce takes some 10 ms on an idle machine.
var bounce = cores.Bounce{Turns: 2000, Batches: 15, Patience: 10 * time.Second}

// measureDistance lets two threads pass a cache line back and forth.
func measureDistance(a, b int) (Distance, error) {
	if a == b {
		return Distance{Class: OneCPU}, nil
	}
	batches, err := bounce.Measure(a, b)
	if err != nil {
		return Distance{}, err
	}
	d := Distance{NS: median(batches), Class: Near}
	if d.NS >= nearBelow {
		d.Class = Far
	}
	return d, nil
}
