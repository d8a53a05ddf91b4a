// Package differential sends the same packets through two equal worlds, one with
// SCON and one without, and compares the output byte for byte.
// differential.md describes cases and how to replay one.
package differential
