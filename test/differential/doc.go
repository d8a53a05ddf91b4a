// Package differential runs the same packets through two equal worlds, one
// with SCON and one without, and compares what comes out of them, byte for
// byte. docs/differential.md says what a case is made of and how to replay one.
package differential
