package tune

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
)

// Parameter is an integer parameter of the search.
type Parameter struct {
	Name      string
	Low, High int // both included, Low at least 1
}

// Space is the search space.
type Space []Parameter

// Point has a value for each parameter.
type Point []int

func (s Space) check() error {
	for _, p := range s {
		if p.Low < 1 || p.High < p.Low {
			return fmt.Errorf("parameter %s: %d to %d is no range above 0", p.Name, p.Low, p.High)
		}
	}
	if len(s) == 0 {
		return fmt.Errorf("no parameter to choose")
	}
	return nil
}

// place returns the place of a point in the unit cube, on a logarithmic scale: 1 is
// as distant from 2 as 32 from 64.
func (s Space) place(p Point) []float64 {
	place := make([]float64, len(s))
	for i, parameter := range s {
		if span := math.Log(float64(parameter.High) / float64(parameter.Low)); span > 0 {
			place[i] = math.Log(float64(p[i])/float64(parameter.Low)) / span
		}
	}
	return place
}

// point returns the point nearest to a place.
func (s Space) point(place []float64) Point {
	p := make(Point, len(s))
	for i, parameter := range s {
		ratio := float64(parameter.High) / float64(parameter.Low)
		value := float64(parameter.Low) * math.Pow(ratio, place[i])
		p[i] = min(max(int(math.Round(value)), parameter.Low), parameter.High)
	}
	return p
}

func (s Space) random(r *rand.Rand) Point {
	place := make([]float64, len(s))
	for i := range place {
		place[i] = r.Float64()
	}
	return s.point(place)
}

// spread returns a Latin hypercube of n points: one in each of n equal intervals of each
// parameter's range.
func (s Space) spread(n int, r *rand.Rand) []Point {
	columns := make([][]int, len(s))
	for i := range columns {
		columns[i] = r.Perm(n)
	}
	points := make([]Point, n)
	for k := range points {
		place := make([]float64, len(s))
		for i := range place {
			place[i] = (float64(columns[i][k]) + r.Float64()) / float64(n)
		}
		points[k] = s.point(place)
	}
	return points
}

// near returns a random point near another.
func (s Space) near(p Point, r *rand.Rand) Point {
	place := s.place(p)
	for i := range place {
		place[i] = min(max(place[i]+0.1*r.NormFloat64(), 0), 1)
	}
	return s.point(place)
}

// Text formats each parameter with its value.
func (s Space) Text(p Point) string {
	words := make([]string, len(s))
	for i, parameter := range s {
		words[i] = fmt.Sprintf("%s=%d", parameter.Name, p[i])
	}
	return strings.Join(words, " ")
}

// Map returns the values by parameter name.
func (s Space) Map(p Point) map[string]int {
	values := map[string]int{}
	for i, parameter := range s {
		values[parameter.Name] = p[i]
	}
	return values
}
