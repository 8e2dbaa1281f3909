// Package sample has a test for each result that a test can have.
package sample

import (
	"os"
	"testing"
)

func TestPasses(t *testing.T) { t.Log("a passing test says this") }

func TestPassesToo(t *testing.T) { t.Run("part", func(*testing.T) {}) }

func TestSkipped(t *testing.T) { t.Skip("it lacks a part") }

func TestFails(t *testing.T) {
	t.Run("part", func(t *testing.T) { t.Error("a failing test says this") })
}

func TestPanics(*testing.T) { panic("a panicking test says this") }

func TestExits(*testing.T) { os.Exit(0) }

// TestDiesAfterwards prints what a passing test prints, and its process fails.
func TestDiesAfterwards(t *testing.T) {
	t.Cleanup(func() { go os.Exit(3); select {} })
	os.Stdout.WriteString("--- PASS: TestDiesAfterwards (0.00s)\n")
}

func TestHangs(*testing.T) { select {} }

// TestRaces passes unless it is built with the race detector.
func TestRaces(*testing.T) {
	n, done := 0, make(chan bool)
	go func() { n++; done <- true }()
	n++
	<-done
}
