package bench

import (
	"strings"
	"testing"
)

func TestMeasureDistance(t *testing.T) {
	first, last, err := TwoCPUs()
	if err != nil {
		t.Fatal(err)
	}
	if first == last {
		t.Skip("missing: a second CPU")
	}
	d, err := measureDistance(first, last)
	if err != nil {
		t.Fatal(err)
	}
	if d.NS <= 0 || (d.Class == Near) != (d.NS < nearBelow) {
		t.Errorf("distance %+v", d)
	}
}

func TestDistanceOfOneCPU(t *testing.T) {
	d, err := measureDistance(0, 0)
	if err != nil || d.Class != OneCPU {
		t.Errorf("%v, %v; want class %s", d, err, OneCPU)
	}
}

func TestDistanceToNoCPU(t *testing.T) {
	_, err := measureDistance(0, 1023)
	if err == nil || !strings.Contains(err.Error(), "pin to CPU 1023") {
		t.Errorf("error %v, want one about CPU 1023", err)
	}
}
