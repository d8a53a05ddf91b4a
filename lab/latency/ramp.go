package latency

import "context"

// The rates of a ramp, in packets per second, and how they increase.
const (
	lowestRate  = 1000
	highestRate = 2e6
	rise        = 1.3
	// precision is the relative difference between the highest loss-free rate and
	// the lowest one with losses at which the search ends.
	precision = 0.02
	// beyond is the share of lost packets at which the curve ends.
	beyond = 0.5
)

// Point is a point of a loss curve.
type Point struct {
	Rate float64 `json:"rate"`
	// Loss is the smallest share of lost packets of all attempts at the rate.
	Loss float64 `json:"loss"`
	// Losses of each attempt.
	Losses []float64 `json:"losses"`
}

// Curve is the result of a ramp, in the order of the rates.
type Curve struct {
	Points []Point `json:"points"`
	// LossFree is the highest rate without loss, where no lower rate had losses
	// either; 0 if there is none.
	LossFree float64 `json:"loss_free_pps"`
}

// attempts at a rate that loses packets: other work on the machine may have caused
// the loss.
const attempts = 3

// ramp raises the rate until half of the packets are lost, and then searches for
// the highest rate without loss. try sends at a rate and returns the share of lost
// packets.
func ramp(ctx context.Context, try func(ctx context.Context, rate float64) (float64, error)) (c Curve, err error) {
	take := func(rate float64) (Point, error) {
		p := Point{Rate: rate, Loss: 1}
		for range attempts {
			loss, err := try(ctx, rate)
			if err != nil {
				return p, err
			}
			p.Losses = append(p.Losses, loss)
			if p.Loss = min(p.Loss, loss); p.Loss == 0 {
				break
			}
		}
		c.insert(p)
		return p, nil
	}
	low, high := 0.0, 0.0 // the highest rate without loss, the lowest with losses
	for rate := float64(lowestRate); rate <= highestRate; rate *= rise {
		p, err := take(rate)
		if err != nil {
			return c, err
		}
		if p.Loss > 0 && high == 0 {
			high = rate
		} else if high == 0 {
			low = rate
		}
		if p.Loss > beyond {
			break
		}
	}
	for low > 0 && high-low > precision*low {
		middle := (low + high) / 2
		p, err := take(middle)
		if err != nil {
			return c, err
		}
		if p.Loss > 0 {
			high = middle
		} else {
			low = middle
		}
	}
	c.LossFree = low
	return c, nil
}

// insert inserts a point in the order of the rates.
func (c *Curve) insert(p Point) {
	at := len(c.Points)
	for at > 0 && c.Points[at-1].Rate > p.Rate {
		at--
	}
	c.Points = append(c.Points[:at], append([]Point{p}, c.Points[at:]...)...)
}
