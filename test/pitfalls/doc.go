// Package pitfalls tests for known defects of other fast paths. pitfalls.md
// lists the cases with their tests, here and elsewhere.
package pitfalls
