package bench

import (
	"fmt"
	"time"
)

// Distance is the communication delay between two CPUs. A hypervisor moves virtual
// CPUs between cores and sockets, which changes every figure that needs two of
// them.
type Distance struct {
	// NS is the median time in nanoseconds until the other CPU sees a write to a
	// cache line.
	NS float64 `json:"ns"`
	// Class is NEAR, FAR or ONE. Figures of different classes are not comparable.
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

// Classes of a Distance, and the limit between them in nanoseconds.
const (
	Near   = "NEAR"
	Far    = "FAR"
	OneCPU = "ONE" // this process may use only one CPU

	nearBelow = 150
)

// bounce takes about 10 ms on an idle machine.
var bounce = bounces{roundTrips: 2000, batches: 15, patience: 10 * time.Second}

// measureDistance has two threads pass a cache line back and forth.
func measureDistance(a, b int) (Distance, error) {
	if a == b {
		return Distance{Class: OneCPU}, nil
	}
	batches, err := bounce.measure(a, b)
	if err != nil {
		return Distance{}, err
	}
	d := Distance{NS: median(batches), Class: Near}
	if d.NS >= nearBelow {
		d.Class = Far
	}
	return d, nil
}
