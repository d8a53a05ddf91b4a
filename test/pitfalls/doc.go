// Package pitfalls tests what went wrong for users of other fast paths: each
// test is named after what it protects. docs/pitfalls.md lists the cases, with
// the tests here and elsewhere.
package pitfalls
