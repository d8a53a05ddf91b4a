// Package pitfalls tests for known defects of other fast paths. docs/pitfalls.md
// lists the cases with their tests, here and elsewhere.
package pitfalls
