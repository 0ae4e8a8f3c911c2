// Formulas are set by MathJax, which is copied next to this file by the build. Pages without formulas do not load it.
{
  const here = document.currentScript.src;
  window.MathJax = {
    tex: { inlineMath: [["\\(", "\\)"]], displayMath: [["\\[", "\\]"]], processEscapes: true, processEnvironments: true },
    options: { ignoreHtmlClass: ".*", processHtmlClass: "arithmatex", enableMenu: false },
    svg: { fontCache: "global" },
  };
  if (document.querySelector(".arithmatex")) {
    const script = document.createElement("script");
    script.src = new URL("mathjax.js", here).href;
    document.head.append(script);
  }
}
