(function () {
  window.__AGENT_CANVAS_LOCK_TO_CLOUD__ = location.origin;
  window.__AGENT_CANVAS_DO_NOT_TRACK__ = true;
  try {
    localStorage.setItem("openhands-onboarded", "1");
  } catch (e) {}
})();
