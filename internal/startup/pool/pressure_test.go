package pool

import (
	"errors"
	"testing"
	"time"
)

func TestParsePressure(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"some avg10=29.62 avg60=27.38 avg300=15.29 total=7003965366\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n": 7003965366 * time.Microsecond,
		"some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n":                                                             0,
	} {
		if got, err := parsePressure([]byte(text)); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", "some avg10=1"} {
		if _, err := parsePressure([]byte(text)); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

func TestPressure(t *testing.T) {
	var waited time.Duration
	var broken error
	p := pressure{read: func() (time.Duration, error) { return waited, broken }}
	now := time.Now()
	for i, reading := range []struct {
		after, waited time.Duration
		want          bool
	}{
		{0, 0, true}, // nothing is known
		{50 * time.Millisecond, 10 * time.Millisecond, false},
		{50 * time.Millisecond, 40 * time.Millisecond, true},
		{time.Millisecond, 0, true}, // as just now
		{50 * time.Millisecond, 5 * time.Millisecond, false},
		{time.Millisecond, time.Millisecond, false},
		{time.Minute, 0, true}, // of another time
		{50 * time.Millisecond, 0, false},
	} {
		now, waited = now.Add(reading.after), waited+reading.waited
		if got := p.isHigh(now); got != reading.want {
			t.Errorf("reading %d: %v", i, got)
		}
	}
	broken = errors.New("no such file")
	if p.isHigh(now.Add(time.Minute)) {
		t.Error("high without a count")
	}
}
