package differential

import (
	"math"
	"slices"
	"testing"
)

// share is how many valid packets of established connections a case has sent, and how
// many of them went express.
type share struct{ sent, express uint64 }

// enough is the number of cases from which on their share is checked.
const enough = 10

// count adds the share of the case that has run.
func (p *pair) count() error {
	s, err := p.scon.bed.Daemon.Status()
	if err != nil {
		return err
	}
	p.shares = append(p.shares, share{p.sent, s.Totals.ExpressPackets - p.express})
	p.sent, p.express = 0, s.Totals.ExpressPackets
	return nil
}

// shareOf returns the share of all cases and its standard error. The shares of single
// cases range from 0, where the rules keep all connections regular, to nearly 1.
func shareOf(cases []share) (got, deviation float64) {
	var sent, express, squares float64
	for _, c := range cases {
		sent, express = sent+float64(c.sent), express+float64(c.express)
	}
	if sent == 0 {
		return 0, 0
	}
	got = express / sent
	for _, c := range cases {
		d := float64(c.express) - got*float64(c.sent)
		squares += d * d
	}
	n := float64(len(cases))
	return got, math.Sqrt(squares*n/max(1, n-1)) / sent
}

// tooFew reports whether the share is less than least by more than four standard
// errors: by more than chance.
func tooFew(cases []share, least float64) bool {
	got, deviation := shareOf(cases)
	return len(cases) >= enough && got+4*deviation < least
}

// The share of a few cases is due to chance, unless none goes express. That of many is not.
func TestTooFew(t *testing.T) {
	low := []share{{200, 0}, {200, 0}, {200, 0}, {200, 100}, {200, 50}} // 0.15
	for name, test := range map[string]struct {
		cases []share
		want  bool
	}{
		"none express":         {slices.Repeat([]share{{200, 0}}, enough), true},
		"low share, few cases": {slices.Repeat(low, 2), false},
		"low share, many":      {slices.Repeat(low, 100), true},
		"sufficient":           {slices.Repeat([]share{{200, 0}, {200, 100}}, 100), false},
		"not enough cases":     {slices.Repeat([]share{{200, 0}}, enough-1), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tooFew(test.cases, everything.leastExpress); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}
