package tune

import (
	"errors"
	"fmt"
	"math"

	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// hyper are the parameters of a Gaussian process whose values have mean 0 and
// variance 1.
type hyper struct {
	length float64 // correlation length
	noise  float64 // variance of measurements at the same place
}

// Grids from which Fit takes the hyperparameters of maximum likelihood. A place is a
// point of the unit cube.
var (
	lengths = []float64{0.1, 0.2, 0.35, 0.6, 1, 1.7, 3}
	noises  = []float64{1e-6, 1e-3, 0.01, 0.05, 0.2, 0.5}
)

// Process is a Gaussian process with a Matérn-5/2 kernel, given measurements.
type Process struct {
	hyper
	places [][]float64
	mean   float64 // of the measurements
	scale  float64 // their standard deviation
	factor mat.Cholesky
	weight mat.VecDense // inverse covariance times normalised measurements
}

// Fit returns the process of measurements at places of the unit cube, with the length
// and noise of maximum likelihood.
func Fit(places [][]float64, measured []float64) (*Process, error) {
	if len(places) == 0 || len(places) != len(measured) {
		return nil, fmt.Errorf("fit a Gaussian process: %d places, %d measurements", len(places), len(measured))
	}
	var best *Process
	likeliest := math.Inf(-1)
	for _, length := range lengths {
		for _, noise := range noises {
			p := &Process{hyper: hyper{length, noise}, places: places}
			likelihood, ok := p.condition(measured)
			if ok && likelihood > likeliest {
				best, likeliest = p, likelihood
			}
		}
	}
	if best == nil {
		return nil, errors.New("fit a Gaussian process: no covariance is positive definite")
	}
	return best, nil
}

// condition conditions the process on the measurements and returns their log
// likelihood, up to a constant. ok is false if the covariance is singular.
func (p *Process) condition(measured []float64) (likelihood float64, ok bool) {
	p.mean, p.scale = stat.PopMeanStdDev(measured, nil)
	if p.scale == 0 {
		p.scale = 1
	}
	n := len(measured)
	normal := mat.NewVecDense(n, nil)
	for i, y := range measured {
		normal.SetVec(i, (y-p.mean)/p.scale)
	}
	covariance := mat.NewSymDense(n, nil)
	for i := range n {
		for j := range i {
			covariance.SetSym(i, j, p.kernel(p.places[i], p.places[j]))
		}
		covariance.SetSym(i, i, 1+p.noise)
	}
	if !p.factor.Factorize(covariance) {
		return 0, false
	}
	if p.factor.SolveVecTo(&p.weight, normal) != nil { // close to singular
		return 0, false
	}
	return -0.5*mat.Dot(normal, &p.weight) - 0.5*p.factor.LogDet(), true
}

// kernel returns the correlation of the values at two places: Matérn-5/2.
func (p *Process) kernel(a, b []float64) float64 {
	var square float64
	for i := range a {
		square += (a[i] - b[i]) * (a[i] - b[i])
	}
	r := math.Sqrt(5*square) / p.length
	return (1 + r + r*r/3) * math.Exp(-r)
}

// At returns mean and standard deviation of the process at a place.
func (p *Process) At(place []float64) (mean, deviation float64) {
	n := len(p.places)
	near := mat.NewVecDense(n, nil)
	for i, known := range p.places {
		near.SetVec(i, p.kernel(place, known))
	}
	var solved mat.VecDense
	variance := 0.0
	if p.factor.SolveVecTo(&solved, near) == nil {
		variance = max(0, 1-mat.Dot(near, &solved))
	}
	return p.mean + p.scale*mat.Dot(near, &p.weight), p.scale * math.Sqrt(variance)
}

// ExpectedImprovement returns the expected value of max(best - value, 0) at a place.
func ExpectedImprovement(mean, deviation, best float64) float64 {
	if deviation == 0 {
		return max(0, best-mean)
	}
	z := (best - mean) / deviation
	return (best-mean)*distuv.UnitNormal.CDF(z) + deviation*distuv.UnitNormal.Prob(z)
}
