// Package testcluster is the test cluster of end-to-end tests and benchmarks. It starts a real
// Vault, a real Nomad and three `bivouac server` processes on the loopback interface, and has HTTP
// clients for them. Everything ends with the test that started it.
package testcluster
